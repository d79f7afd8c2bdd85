"""Constraints: from what a request asks of its answer to the grammar that its rows keep to.

Translating and compiling take milliseconds to seconds and happen on worker threads; what was
compiled is kept, the latest used, within a size.  One that takes too long is refused, and goes on
alone until it ends.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import anyio
import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from mlxbun.domain.constraint import (
    CompiledGrammar,
    Constraint,
    GrammarCompiler,
    GrammarUnavailable,
    RowGrammar,
    translate,
)
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import TokenId

MAX_BYTES = 256 << 20
MAX_SECONDS = 30.0
NUM_WORKERS = 2
MAX_RUNNING = 6  # compilations, those that nobody waits for any more included


class Compiled(Struct, frozen=True):
    """`unenforced` are JSON pointers of keywords that the grammar does not keep to."""

    grammar: CompiledGrammar
    unenforced: tuple[str, ...]


class Constraints:
    """The grammars of one model.  One event loop calls it."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        token_bytes: Callable[[TokenId], bytes],
        *,
        max_bytes: int = MAX_BYTES,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        self._compiler = compiler
        self._token_bytes = token_bytes
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._workers: anyio.CapacityLimiter | None = None
        self._waiting: dict[str, anyio.Lock] = {}
        # Worker threads write what follows.
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Compiled] = OrderedDict()
        self._num_bytes = 0
        self._num_running = 0

    async def compiled(self, constraint: Constraint) -> Compiled:
        """Return `constraint` compiled.  Raises Refused with its field, or a part of it."""
        # Whether something comes before it changes the rules, what it is does not.
        key = replace(constraint, after="." if constraint.after else None).digest
        lock = self._waiting.setdefault(key, anyio.Lock())
        try:
            async with lock:
                found = self._find(key)
                return found if found is not None else await self._compile(key, constraint)
        finally:
            if not lock.statistics().tasks_waiting:
                self._waiting.pop(key, None)

    def row_grammar(
        self, constraint: Constraint, compiled: Compiled, stop_ids: frozenset[TokenId]
    ) -> RowGrammar:
        """Return what a row with `constraint` keeps to."""
        return RowGrammar(
            constraint.digest, compiled.grammar, constraint.after, stop_ids, self._token_bytes
        )

    def _find(self, key: str) -> Compiled | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    async def _compile(self, key: str, constraint: Constraint) -> Compiled:
        if self._num_running >= MAX_RUNNING:
            message = "other grammars are still being compiled; try again in a moment"
            raise Refused("queue_full", message, constraint.field)
        if self._workers is None:
            self._workers = anyio.CapacityLimiter(NUM_WORKERS)
        try:
            with anyio.fail_after(self._max_seconds):
                return await anyio.to_thread.run_sync(
                    self._work, key, constraint, limiter=self._workers, abandon_on_cancel=True
                )
        except TimeoutError:
            message = (
                f"{constraint.field} is not compiled within {self._max_seconds:g} s: simplify it"
            )
            raise Refused("invalid_value", message, constraint.field) from None

    def _work(self, key: str, constraint: Constraint) -> Compiled:
        """Translate and compile.  On a worker thread; its result is kept whoever waits."""
        with self._lock:
            self._num_running += 1
        try:
            translation = translate(constraint, self._compiler.special)
            grammar = self._compiler.compile(translation.rules)
        except GrammarUnavailable as error:
            raise Refused("unsupported", str(error), constraint.field) from None
        except ValueError as error:
            if isinstance(error, Refused):
                raise
            message = f"{constraint.field} cannot be compiled: {error}"
            raise Refused("invalid_value", message, constraint.field) from None
        finally:
            with self._lock:
                self._num_running -= 1
        compiled = Compiled(grammar, translation.unenforced)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = compiled
                self._num_bytes += grammar.num_bytes
            while self._num_bytes > self._max_bytes and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                self._num_bytes -= oldest.grammar.num_bytes
        return compiled
