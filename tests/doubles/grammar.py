"""A compiler of grammars without a grammar: it knows the texts that rules stand for.

Rules of texts alone, such as a choice has, are read; of others it knows the texts it was given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from doubles.tokenizer import EOS, SPECIAL
from mlxbun.domain.constraint import GrammarStuck, GrammarUnavailable, Rules
from mlxbun.domain.sampling import TokenId

# Blank space before it, after a thought, is left out.
_CHOICE = re.compile(r'root ::= (?:\[[^]]*\]\{0,3\} )?\(?((?:"(?:[^"\\]|\\.)*"(?: \| )?)+)\)?\n')
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')


class TextsMatcher:
    """Port Matcher: one of some texts, and then the end."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._texts = texts
        self._said: list[bytes] = [b""]
        self._ended = False

    def accept(self, token_id: TokenId) -> bool:
        if token_id == EOS:
            self._ended = self._said[-1] in self._texts
            return self._ended
        return token_id < 256 and self.accept_text(bytes([token_id]))

    def accept_text(self, text: bytes) -> bool:
        said = self._said[-1] + text
        if self._ended or not any(t.startswith(said) for t in self._texts):
            return False
        self._said.append(said)
        return True

    def fill(self, words: memoryview) -> bool:
        said = self._said[-1]
        allowed = {t[len(said)] for t in self._texts if t.startswith(said) and len(t) > len(said)}
        words[:] = memoryview(bytes(words.nbytes)).cast("i")
        if self._ended:
            allowed = set()
        for token_id in (*allowed, *([EOS] if said in self._texts else [])):
            word, bit = divmod(token_id, 32)
            words[word] |= 1 << bit if bit < 31 else -(1 << 31)
        if not allowed and said not in self._texts:
            raise GrammarStuck("nothing may follow")
        return not allowed

    def rollback(self, num_tokens: int) -> None:
        if self._ended and num_tokens:
            self._ended, num_tokens = False, num_tokens - 1
        del self._said[len(self._said) - num_tokens :]


class Texts:
    """Port CompiledGrammar."""

    num_bytes = 1000

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = [text.encode() for text in texts]

    def matcher(self) -> TextsMatcher:
        return TextsMatcher(self._texts)


class TextsCompiler:
    """Port GrammarCompiler, for the vocabulary of `ByteTokenizer`.

    `known` are the texts of rules that are no choice; `compiled` lists what was asked for.
    """

    def __init__(self, known: Sequence[str] = ("{}",), *, missing: bool = False) -> None:
        self.compiled: list[Rules] = []
        self._known = known
        self._missing = missing

    @property
    def special(self) -> Mapping[str, TokenId]:
        if self._missing:
            raise GrammarUnavailable("install what compiles grammars")
        return SPECIAL

    def compile(self, rules: Rules) -> Texts:
        self.compiled.append(rules)
        if "malformed" in rules.ebnf:
            raise ValueError("line 1: it is malformed")
        choice = _CHOICE.fullmatch(rules.ebnf)
        return Texts([json.loads(t) for t in _TEXT.findall(choice[1])] if choice else self._known)
