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
NO_TEXT = b"\xff"  # a byte that no UTF-8 has
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
                for spelled, token_id in vocabulary.special.items():
                    # Not empty, or xgrammar would not allow it by its id either.
                    if token_id < vocabulary.size:
                        tokens[token_id] = NO_TEXT + spelled.encode()
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
        stop_ids = [i for i in vocabulary.stop_ids if i < vocabulary.size]
        self._tokens = _bits(vocabulary.size)
        self._not_stop = _bits(vocabulary.size, stop_ids)

    @property
    def num_bytes(self) -> int:
        return int(self._compiled.memory_size_bytes())

    def matcher(self) -> Matcher:
        native = self._core.GrammarMatcher(self._compiled, None, False, -1, None)
        return XGrammarMatcher(native, self._tokens, self._not_stop)


class XGrammarMatcher:
    """Port Matcher."""

    def __init__(
        self, native: Any, tokens: npt.NDArray[np.int32], not_stop: npt.NDArray[np.int32]
    ) -> None:
        """`tokens` are the bits of all tokens, `not_stop` of those that are no end token."""
        self._native = native
        self._tokens = tokens
        self._not_stop = not_stop

    def accept(self, token_id: TokenId) -> bool:
        return bool(self._native.accept_token(token_id, False))

    def accept_text(self, text: bytes) -> bool:
        return bool(self._native.accept_string(text, False))

    def fill(self, words: memoryview) -> bool:
        native = self._native
        array = np.frombuffer(words, dtype=np.int32)
        if native.is_terminated():
            np.bitwise_xor(self._tokens, self._not_stop, out=array)
            return True
        native.fill_next_token_bitmask(array, 0, False)
        array &= self._tokens  # xgrammar leaves the bits beyond the last token as they come
        # A text that may end and may go on only by ending is complete.
        if native.is_completed():
            return not (array & self._not_stop).any()
        if not array.any():
            raise GrammarStuck("no token may follow, and the text is not complete")
        return False

    def rollback(self, num_tokens: int) -> None:
        self._native.rollback(num_tokens)


def _bits(size: int, without: Sequence[int] = ()) -> npt.NDArray[np.int32]:
    """Return the bits of the first `size` tokens, less some: [ceil(size / 32)]."""
    bits = np.zeros(-(-size // 32) * 32, dtype=np.uint8)
    bits[:size] = 1
    bits[list(without)] = 0
    return np.packbits(bits, bitorder="little").view(np.int32)


def _reason(error: Exception) -> str:
    """Return what the library says, without its clock and its source lines."""
    text = str(error).strip()
    _, found, rest = text.partition(".cc:")
    return rest.partition(":")[2].strip() if found else text
