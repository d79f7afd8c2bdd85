"""One response while it is made: from pieces to events, and to the response object at its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from mlxbun.adapters.http.openai_logprobs import chat_logprobs
from mlxbun.adapters.http.openai_types import ChatLogprob
from mlxbun.adapters.http.responses_events import (
    LAST,
    AnyEvent,
    Created,
    InProgress,
    Keepalive,
    record,
)
from mlxbun.adapters.http.responses_output import Output
from mlxbun.adapters.http.responses_types import (
    IncompleteDetails,
    InputDetails,
    OutputDetails,
    Response,
    ResponseError,
    ResponseUsage,
    Status,
)
from mlxbun.application.generation import Generation
from mlxbun.application.prepare import generate
from mlxbun.application.row_specs import Prepared
from mlxbun.application.row_text import Piece
from mlxbun.application.service import Service
from mlxbun.domain.conversation import Text
from mlxbun.domain.refusal import Refused


class Ends(Struct, frozen=True):
    """Who hears of a run: `begun` when it is under way, `over` when it is not any more.

    A run that broke is told of twice, since its last state is known a moment later.
    """

    begun: Callable[[], None]
    over: Callable[[], None]


class Run:
    """Makes one response.  `response` is how it stands, its last state once it is over."""

    def __init__(
        self,
        service: Service,
        prepared: Prepared,
        response: Response,
        output: Output,
        ends: Ends,
        now: Callable[[], float],
    ) -> None:
        self._service = service
        self._prepared = prepared
        self._response = response
        self._output = output
        self._ends = ends
        self._now = now
        self._generation: Generation | None = None
        self._cancelled = False
        self._waiting: list[ChatLogprob] = []  # of tokens whose text is held back

    @property
    def id(self) -> str:
        return self._response.id

    @property
    def num_events(self) -> int:
        """How many there were so far; the last one has this number less one."""
        return self._output.num_events

    @property
    def response(self) -> Response:
        if self._response.status != "in_progress":
            return self._response
        return replace(self._response, output=self._output.items)

    async def events(self) -> AsyncGenerator[list[AnyEvent], None]:
        """Yield what happens, at first that it began, before the prompt is read.

        Raises Refused when it cannot begin, and when it broke.  Closing this ends it as
        cancelled.
        """
        async with generate(self._service, self._prepared) as generation:
            self._generation = generation
            if self._cancelled:  # before it could begin
                generation.stop()
            self._ends.begun()
            try:
                for kind in (Created, InProgress):
                    self._output.event(kind, response=self._response)
                yield self._output.take_events()
                finish = None
                async with aclosing(generation.pieces()) as pieces:
                    async for piece in pieces:
                        finish = piece.finish
                        self._read(piece)
                        if events := self._output.take_events():
                            yield events
                cut = self._cancelled or (finish == "length" and not self._output.silent)
                self._output.end(cut=cut)
                self._settle("cancelled" if self._cancelled else "incomplete" if cut
                             else "completed")  # fmt: skip
                yield self._output.take_events()
            except Exception:
                raise  # `broken` has the last word, or the status of the answer
            except BaseException:  # its client left
                self._settle("cancelled")
                raise
            finally:
                self._ends.over()

    def cancel(self) -> None:
        """End it early; whoever reads its events gets the last ones."""
        self._cancelled = True
        if self._generation is not None:
            self._generation.stop()

    def heartbeat(self) -> bytes:
        return record(Keepalive(sequence_number=max(self._output.num_events - 1, 0)))

    def broken(self, refused: Refused) -> bytes:
        """Return the last record of a stream that `refused` ended."""
        self._output.take_events()
        self._settle("failed", ResponseError("server_error", refused.message))
        self._ends.over()
        return b"".join(map(record, self._output.take_events()))

    def _read(self, piece: Piece) -> None:
        spec = self._prepared.specs[0]
        if piece.spoken:
            tokenizer = self._prepared.model.tokenizer
            said = chat_logprobs(
                tokenizer,
                piece.spoken,
                spec.params.logprobs,
                spec.stop_ids,
                num_cut=piece.num_cut,
            )
            self._waiting += said.content
        logprobs: list[ChatLogprob] = []
        parts = piece.parts
        if piece.num_cut and not parts:  # the first half of a token was shown before
            parts = (Text(""),)
        if any(isinstance(part, Text) for part in parts):
            logprobs, self._waiting = self._waiting, []
        self._output.feed(parts, logprobs)

    def _settle(self, status: Status, error: ResponseError | None = None) -> None:
        self._response = replace(
            self._response,
            status=status,
            completed_at=int(self._now()) if status == "completed" else None,
            error=error,
            incomplete_details=(
                IncompleteDetails("max_output_tokens") if status == "incomplete" else None
            ),
            output=self._output.items,
            usage=self._usage(),
        )
        self._output.event(LAST[status], response=self._response)

    def _usage(self) -> ResponseUsage | None:
        generation = self._generation
        if generation is None:
            return None
        num_in = self._prepared.num_prompt_tokens
        num_out, num_thought = generation.num_completion_tokens, generation.num_reasoning_tokens
        if self._output.silent:
            num_out = num_thought = 0
        return ResponseUsage(
            num_in,
            InputDetails(generation.num_cached_tokens),
            num_out,
            OutputDetails(num_thought),
            num_in + num_out,
        )
