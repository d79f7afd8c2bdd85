"""Ports of a grammar: what compiles one, what is compiled, and what follows one row's text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from mlxbun.domain.constraint.translation import Rules
from mlxbun.domain.sampling import TokenId


class GrammarStuck(RuntimeError):
    """No token may follow, and the text is not complete: the vocabulary cannot spell it."""


class GrammarUnavailable(RuntimeError):
    """Nothing here compiles grammars; the message says what to do."""


class Matcher(Protocol):
    """Port: follows one row.  The engine's thread calls it."""

    def accept(self, token_id: TokenId) -> bool:
        """Move past a token that was drawn; return whether it was allowed.

        An end token is allowed where the text may end, and then `fill` says that it has.
        """
        ...

    def accept_text(self, text: bytes) -> bool:
        """Move past text that is no whole token; as `accept`."""
        ...

    def fill(self, words: memoryview) -> bool:
        """Write which tokens may follow into `words`; return whether the text is complete.

        `words` is [ceil(vocabulary / 32)] of int32, bit i of word j standing for token 32 j + i.
        Once it is complete nothing but an end token may follow, and `words` says that, or
        nothing at all.  Raises GrammarStuck.
        """
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last calls of `accept` and `accept_text`, each of which counts one."""
        ...


class CompiledGrammar(Protocol):
    """Port: a grammar over one vocabulary.  Any thread may call it; it does not change."""

    @property
    def num_bytes(self) -> int: ...

    def matcher(self) -> Matcher:
        """Return a matcher at the beginning of a text."""
        ...


class GrammarCompiler(Protocol):
    """Port: compiles for one model's vocabulary.  Any thread may call it; takes long.

    `special` are the spellings of special tokens: only rules that name their ids allow those.
    """

    @property
    def special(self) -> Mapping[str, TokenId]:
        """Raises GrammarUnavailable."""
        ...

    def compile(self, rules: Rules) -> CompiledGrammar:
        """Return `rules` compiled.

        Raises ValueError, saying where, for rules that are malformed, and for those that the
        vocabulary cannot spell the beginning of; GrammarUnavailable.
        """
        ...


class RowGrammar(Struct, frozen=True):
    """What a request's rows are to keep to.  The engine does not look inside.

    `digest` is the constraint's.  `token_bytes` says what a token stands for.
    """

    digest: str
    compiled: CompiledGrammar
    after: str | None = None
    stop_ids: frozenset[TokenId] = frozenset()
    token_bytes: Callable[[TokenId], bytes] = lambda _: b""

    def matcher(self, drawn: Sequence[TokenId] = ()) -> Matcher:
        """Return a matcher for one row, past the tokens that it has `drawn`."""
        matcher = self.compiled.matcher()
        if self.after:
            after = self.after.encode()
            matcher = MatcherAfter(after, matcher, self.token_bytes, self.stop_ids)
        for token_id in drawn:
            matcher.accept(token_id)
        return matcher


class MatcherAfter:
    """Lets a row write what it likes until it has written `marker`; then `inner` follows it.

    Until then a row may not end.  What a token says beyond the marker counts.
    """

    def __init__(
        self,
        marker: bytes,
        inner: Matcher,
        token_bytes: Callable[[TokenId], bytes],
        stop_ids: frozenset[TokenId],
    ) -> None:
        assert marker, "what comes before must be some text"
        self._marker = marker
        self._inner = inner
        self._token_bytes = token_bytes
        self._stop_ids = stop_ids
        self._tail = b""  # the end of what was written, which may begin the marker
        self._begun = False
        # Before each call: the tail, whether it had begun, how many calls `inner` has of it.
        self._calls: list[tuple[bytes, bool, int]] = []

    def accept(self, token_id: TokenId) -> bool:
        if self._begun:
            return self._counted(self._inner.accept(token_id))
        return token_id not in self._stop_ids and self._accept_before(self._token_bytes(token_id))

    def accept_text(self, text: bytes) -> bool:
        if self._begun:
            return self._counted(self._inner.accept_text(text))
        return self._accept_before(text)

    def fill(self, words: memoryview) -> bool:
        if self._begun:
            return self._inner.fill(words)
        words[:] = memoryview(b"\xff" * words.nbytes).cast("i")
        for token_id in self._stop_ids:
            word, bit = divmod(token_id, 32)
            if word < len(words):
                words[word] &= ~(1 << bit) if bit < 31 else 0x7FFFFFFF
        return False

    def rollback(self, num_tokens: int) -> None:
        for _ in range(num_tokens):
            self._tail, self._begun, num_inner = self._calls.pop()
            if num_inner:
                self._inner.rollback(num_inner)

    def _counted(self, accepted: bool) -> bool:
        if accepted:
            self._calls.append((b"", True, 1))
        return accepted

    def _accept_before(self, text: bytes) -> bool:
        said = self._tail + text
        before, found, rest = said.partition(self._marker)
        if found and rest and not self._inner.accept_text(rest):
            return False
        self._calls.append((self._tail, False, 1 if rest else 0))
        keep = len(self._marker) - 1
        self._tail = before[-keep:] if keep and not found else b""
        self._begun = bool(found)
        return True
