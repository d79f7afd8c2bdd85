"""What the engine says: items for requests and the events behind them, told once a turn for all."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from mlxbun.application.requests import Drawn, Ended, Item, Mailbox, Outbox
from mlxbun.domain.journal import Event, EventBatch, Journal
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import RequestId, TokenId
from mlxbun.domain.steps import TokenLogprobs


class Outgoing:
    """Gathers what a turn brings, and knows the mailboxes of those who still hear of it.

    All on the engine's thread.  `take_calls` returns, once, what is to be called on the event loop.
    """

    def __init__(
        self,
        tell: Callable[[Outbox], None],
        journal: Journal,
        take_calls: Callable[[], tuple[Callable[[], None], ...]],
    ) -> None:
        self._tell = tell
        self._journal = journal
        self._take_calls = take_calls
        self._sequence = 0
        self._events: list[Event] = []
        self._items: list[tuple[Mailbox, Item]] = []
        self._mailboxes: dict[RequestId, Mailbox] = {}

    @property
    def request_ids(self) -> list[RequestId]:
        """Those who hear of it, a copy."""
        return list(self._mailboxes)

    @property
    def num_events(self) -> int:
        """Of those that were not told yet."""
        return len(self._events)

    def note(self, events: Sequence[Event]) -> None:
        """Take events that were applied, in order."""
        self._events += events

    def open(self, request_id: RequestId, mailbox: Mailbox) -> None:
        """From now on `mailbox` gets what is put for the request."""
        self._mailboxes[request_id] = mailbox

    def close(self, request_id: RequestId) -> None:
        """Say nothing more to a request, which may be closed already."""
        self._mailboxes.pop(request_id, None)

    def put(self, request_id: RequestId, items: Sequence[Item]) -> None:
        mailbox = self._mailboxes[request_id]
        self._items += [(mailbox, item) for item in items]

    def put_tokens(
        self,
        wanted: Container[RequestId],
        request_ids: Sequence[RequestId],
        token_ids: Sequence[TokenId],
        logprobs: Sequence[TokenLogprobs | None],
    ) -> None:
        """Put a step's tokens, those of `wanted` requests; `logprobs` may be empty."""
        for index, request_id in enumerate(request_ids):
            if request_id in wanted:
                row_logprobs = logprobs[index] if logprobs else None
                mailbox = self._mailboxes[request_id]
                self._items.append((mailbox, Drawn(token_ids[index], row_logprobs)))

    def reject(self, mailbox: Mailbox, refusal: Refused) -> None:
        """Say to somebody who was never let in that nothing follows."""
        self._items.append((mailbox, Ended("rejected", refusal)))

    def end(self, request_id: RequestId, item: Ended) -> None:
        """Put the last item of a request, unless it heard that it is over."""
        mailbox = self._mailboxes.pop(request_id, None)
        if mailbox is not None:
            self._items.append((mailbox, item))

    def break_off(self, request_id: RequestId) -> None:
        """End a request on which the model failed."""
        why = "the model failed on this request; see the server's log"
        self.end(request_id, Ended("failed", Refused("engine_failed", why)))

    def flush(self) -> None:
        """Say once, for all rows, what came since the last time."""
        calls = self._take_calls()
        if not self._events and not self._items and not calls:
            return
        batch = None
        if self._events:
            self._sequence += 1
            batch = EventBatch(self._sequence, tuple(self._events))
            self._journal.append(batch)
        outbox = Outbox(tuple(self._items), batch, calls)
        self._events, self._items = [], []
        self._tell(outbox)
