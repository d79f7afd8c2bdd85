"""Generation: one request of one or more rows, from ids to text, streamed or not.

One path under every protocol: open, read pieces until all rows ended, close.  Closing early
cancels what still runs.  Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from mlxbun.application.requests import (
    Accepted,
    Drawn,
    Ended,
    Item,
    RequestSpec,
    Reused,
    Submitter,
)
from mlxbun.application.row_text import Piece, Row
from mlxbun.domain.conversation import PlainText, TextReader
from mlxbun.domain.refusal import Refused
from mlxbun.domain.text import TokenDecoder


class Generation:
    """The rows of one request while they run.  Iterate `pieces` to the end."""

    def __init__(
        self, engine: Submitter, rows: Sequence[Row], completed: Callable[[Row], None]
    ) -> None:
        self.rows = rows
        self._engine = engine
        self._completed = completed
        self._arrived: list[Slot] = []  # boxes in which there is something
        # A future and no event: it is waited for once a token.
        self._arrival: asyncio.Future[None] | None = None
        self._stopped = False

    @property
    def num_completion_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    @property
    def num_reasoning_tokens(self) -> int:
        """Of the completion's tokens those of thoughts, and of what opens them."""
        return sum(row.num_reasoning for row in self.rows)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens whose state was reused; a prompt of several rows counts once."""
        of_prompt: dict[int, int] = {}
        for row in self.rows:
            prompt = id(row.spec.prompt_ids)  # rows of one prompt share the tuple
            of_prompt[prompt] = max(of_prompt.get(prompt, 0), row.num_cached)
        return sum(of_prompt.values())

    @property
    def num_replayed_tokens(self) -> int:
        """Tokens of the answer that an earlier attempt drew, and that were not computed again."""
        return sum(row.num_replayed for row in self.rows)

    def slot(self, row: Row) -> Slot:
        return Slot(row, self._arrive)

    def _arrive(self, slot: Slot) -> None:
        self._arrived.append(slot)
        self._wake()

    def _wake(self) -> None:
        arrival, self._arrival = self._arrival, None
        if arrival is not None and not arrival.done():
            arrival.set_result(None)

    async def _take(self) -> list[Slot]:
        while not self._arrived and not self._stopped:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        slots, self._arrived = self._arrived, []
        return slots

    async def accept(self) -> None:
        """Wait until every row is accepted.  Raises the Refused of the first that is not.

        A row that was accepted and then broke was not refused, however soon it broke: `pieces`
        tells of it.
        """
        early: list[Slot] = []
        while not all(row.accepted for row in self.rows):
            for slot in await self._take():
                row, first = slot.row, slot.items[0]
                if isinstance(first, Accepted):
                    row.accepted = True
                    row.num_replayed = first.num_replayed
                elif isinstance(first, Ended) and first.refusal is not None and not row.accepted:
                    row.ended = True
                    raise first.refusal
                early.append(slot)
        self._arrived = early + self._arrived

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield what arrives, one piece a row and wake-up, until every row has finished.

        Raises Refused when a row broke.
        """
        while not all(row.ended for row in self.rows):
            for slot in await self._take():
                row, items = slot.row, slot.take()
                if row.ended or not items:
                    continue
                piece = row.read(items)
                if piece.stopped_by is not None or row.full:
                    self._engine.finish(row.spec.request_id, "stop")
                if row.whole:
                    self._completed(row)
                yield piece

    def stop(self) -> None:
        """Cancel the rows that have not ended while others read `pieces`, which then end."""
        self.close()
        self._stopped = True
        self._wake()

    def close(self) -> None:
        """Cancel the rows that have not ended.  Safe to call twice."""
        for row in self.rows:
            if not row.ended:
                row.ended = True
                self._engine.cancel(row.spec.request_id)


class Slot:
    """A row's mailbox.  `arrived` hears of its first item, and of the first after each `take`."""

    def __init__(self, row: Row, arrived: Callable[[Slot], None]) -> None:
        self.row = row
        self.items: list[Item] = []
        self._arrived = arrived

    def put(self, item: Item) -> None:
        self.items.append(item)
        if len(self.items) == 1:
            self._arrived(self)

    def take(self) -> list[Drawn | Ended]:
        """Empty the box; note what else it holds, and return what is to be read."""
        items, self.items = self.items, []
        for item in items:
            if isinstance(item, Reused):
                self.row.num_cached = item.num_tokens
        return [item for item in items if isinstance(item, Drawn | Ended)]


@asynccontextmanager
async def open_generation(
    engine: Submitter,
    specs: Sequence[RequestSpec],
    stop: Sequence[str],
    decoder: Callable[[], TokenDecoder],
    reader: Callable[[], TextReader] = PlainText,
    completed: Callable[[Row], None] = lambda _: None,
) -> AsyncGenerator[Generation, None]:
    """Submit `specs` together; yield once all are accepted; cancel what is left on leaving.

    `completed` hears of each row that ended by itself, before its last piece is yielded.  Raises
    Refused when the engine takes one of them not; the others are then cancelled.
    """
    if not specs:
        raise Refused("invalid_value", "nothing to generate: the prompt list is empty", "prompt")
    rows = [Row(i, spec, stop, decoder(), reader()) for i, spec in enumerate(specs)]
    generation = Generation(engine, rows, completed)
    try:
        for row in generation.rows:
            engine.submit(row.spec, generation.slot(row))
        await generation.accept()
        yield generation
    finally:
        generation.close()
