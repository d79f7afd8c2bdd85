"""Grammars over a model's vocabulary, compiled and followed by xgrammar.

xgrammar sees a vocabulary of bytes.  Special tokens and ids without a token are nothing to it, so
that no grammar allows them but by their ids.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from mlxbun.adapters.grammar.native import bindings
from mlxbun.domain.constraint import (
    CompiledGrammar,
    GrammarStuck,
    Matcher,
    Rules,
)
from mlxbun.domain.sampling import TokenId

NUM_THREADS = 2
_RAW = 0


class Vocabulary(Struct, frozen=True):
    """`tokens[i]` is what id i stands for, b"" for special tokens and where there is none.

    `size` is how many logits there are, `special` the spellings of special tokens.
    """

    tokens: Sequence[bytes]
    size: int
    stop_ids: Collection[TokenId]
    special: Mapping[str, TokenId] = {}


class XGrammarCompiler:
    """Port GrammarCompiler.  The library and the vocabulary are read on first use."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._read = vocabulary
        self._opening = threading.Lock()
        self._opened: tuple[Any, Any, Vocabulary] | None = None

    @property
    def special(self) -> Mapping[str, TokenId]:
        return self._open()[2].special

    def compile(self, rules: Rules) -> CompiledGrammar:
        core, compiler, vocabulary = self._open()
        try:
            compiled = compiler.compile_grammar_from_strings(rules.ebnf, rules.root)
        except (RuntimeError, ValueError) as error:
            raise ValueError(_reason(error)) from None
        found = XGrammar(core, compiled, vocabulary)
        try:
            words = np.zeros(-(-vocabulary.size // 32), dtype=np.int32)
            found.matcher().fill(words.data)
        except GrammarStuck:
            raise ValueError("the model's vocabulary cannot spell it") from None
        return found

    def _open(self) -> tuple[Any, Any, Vocabulary]:
        with self._opening:
            if self._opened is None:
                core, vocabulary = bindings(), self._read()
                tokens = [*vocabulary.tokens]
                tokens += [b""] * (vocabulary.size - len(tokens))
                stop_ids = sorted(i for i in vocabulary.stop_ids if i < vocabulary.size)
                info = core.TokenizerInfo(
                    tokens[: vocabulary.size], _RAW, vocabulary.size, stop_ids, False
                )
                # Its own cache is off: ours counts bytes over all kinds.
                compiler = core.GrammarCompiler(info, NUM_THREADS, False, -1, False)
                self._opened = core, compiler, vocabulary
            return self._opened


class XGrammar:
    """Port CompiledGrammar."""

    def __init__(self, core: Any, compiled: Any, vocabulary: Vocabulary) -> None:
        self._core = core
        self._compiled = compiled
        self._stop_ids = [i for i in vocabulary.stop_ids if i < vocabulary.size]
        self._not_stop = _not_stop_words(vocabulary.size, self._stop_ids)

    @property
    def num_bytes(self) -> int:
        return int(self._compiled.memory_size_bytes())

    def matcher(self) -> Matcher:
        native = self._core.GrammarMatcher(self._compiled, None, False, -1, None)
        return XGrammarMatcher(native, self._not_stop)


class XGrammarMatcher:
    """Port Matcher."""

    def __init__(self, native: Any, not_stop: npt.NDArray[np.int32]) -> None:
        self._native = native
        self._not_stop = not_stop

    def accept(self, token_id: TokenId) -> bool:
        return bool(self._native.accept_token(token_id, False))

    def accept_text(self, text: bytes) -> bool:
        return bool(self._native.accept_string(text, False))

    def fill(self, words: memoryview) -> bool:
        native = self._native
        array = np.frombuffer(words, dtype=np.int32)
        if native.is_terminated():
            np.invert(self._not_stop, out=array)
            return True
        native.fill_next_token_bitmask(array, 0, False)
        # A text that may end and may go on only by ending is complete.
        if native.is_completed():
            return not (array & self._not_stop).any()
        if not array.any():
            raise GrammarStuck("no token may follow, and the text is not complete")
        return False

    def rollback(self, num_tokens: int) -> None:
        self._native.rollback(num_tokens)


def _not_stop_words(size: int, stop_ids: Sequence[int]) -> npt.NDArray[np.int32]:
    words = np.full(-(-size // 32), -1, dtype=np.int32)
    view = words.view(np.uint32)
    for token_id in stop_ids:
        view[token_id // 32] &= ~np.uint32(1 << (token_id % 32))
    return words


def _reason(error: Exception) -> str:
    """Return what the library says, without its clock and its source lines."""
    text = str(error).strip()
    _, found, rest = text.partition(".cc:")
    return rest.partition(":")[2].strip() if found else text
