"""Drives a real engine, thread and all, with requests that arrive as others make progress."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from mlxbun.adapters.journal import RingJournal
from mlxbun.adapters.mlx_compute import layouts
from mlxbun.adapters.mlx_compute.compute import MlxCompute
from mlxbun.adapters.mlx_compute.opening import leave_thread
from mlxbun.adapters.mlx_compute.sampler import Sampler
from mlxbun.application.engine import Engine
from mlxbun.application.prefixes import Prefixes
from mlxbun.application.requests import Drawn, Ended, Item, Outbox, RequestSpec, Reused
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId
from mlxbun.domain.scheduling import Limits
from mlxbun.domain.steps import Compute


class Arrival(Struct, frozen=True):
    """A request that arrives once the first one has drawn `after_tokens` tokens.

    With `after_all` it arrives once everybody before it has ended.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    after_tokens: int = 0
    after_all: bool = False


class Inbox:
    """A mailbox that remembers, and wakes the driver at every item."""

    def __init__(self, arrived: threading.Condition) -> None:
        self.items: list[Item] = []
        self._arrived = arrived

    @property
    def tokens(self) -> list[int]:
        return [int(item.token_id) for item in self.items if isinstance(item, Drawn)]

    @property
    def ended(self) -> bool:
        return bool(self.items) and isinstance(self.items[-1], Ended)

    def put(self, item: Item) -> None:
        with self._arrived:
            self.items.append(item)
            self._arrived.notify_all()


def open_compute(model: Any, *, l1: bool, vocab_size: int = 512) -> Callable[[], Compute]:
    """Return what the engine's thread calls to own `model`, which is loaded and evaluated."""
    return lambda: MlxCompute(
        layouts.choose(model, l1=l1, compiled=True)[0],
        Sampler(vocab_size, (), normalise=l1, sort_all=False),
    )


def generate(
    opener: Callable[[], Compute],
    arrivals: Sequence[Arrival],
    limits: Limits,
    prefixes: Prefixes | None = None,
    reused: list[int] | None = None,
) -> list[list[int]]:
    """Return the tokens of each request, in order, having run them through one engine.

    `reused` gets how many prompt tokens each request began with.
    """
    arrived = threading.Condition()
    inboxes = [Inbox(arrived) for _ in arrivals]
    failures = list[Exception]()

    def tell(outbox: Outbox) -> None:
        for mailbox, item in outbox.items:
            mailbox.put(item)

    engine = Engine(
        opener,
        limits,
        RingJournal(100),
        leave_thread=leave_thread,
        open_prefixes=lambda: prefixes,
    )
    engine.start(tell, lambda: None, failures.append)
    try:
        for number, (arrival, inbox) in enumerate(zip(arrivals, inboxes, strict=True)):
            with arrived:
                while len(inboxes[0].tokens) < arrival.after_tokens and not failures:
                    assert arrived.wait(60)
                before = inboxes[:number] if arrival.after_all else []
                while not all(inbox.ended for inbox in before) and not failures:
                    assert arrived.wait(60)
            ids = tuple(TokenId(i) for i in arrival.prompt_ids)
            request_id = RequestId(f"request-{number}")
            engine.submit(
                RequestSpec(request_id, ids, arrival.max_tokens, frozenset(), arrival.params),
                inbox,
            )
        with arrived:
            assert arrived.wait_for(lambda: all(i.ended for i in inboxes) or failures, 90)
    finally:
        engine.stop()
    assert not failures, failures
    if reused is not None:
        for inbox in inboxes:
            reused.append(sum(i.num_tokens for i in inbox.items if isinstance(i, Reused)))
    return [inbox.tokens for inbox in inboxes]
