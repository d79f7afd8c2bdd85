"""What the parts of an answer become on the wire of chat completions: a message, or records."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from mlxbun.adapters.http import sse
from mlxbun.adapters.http.openai_request import Reply
from mlxbun.adapters.http.openai_types import (
    AssistantMessage,
    CalledFunction,
    ChatChunk,
    ChatLogprobs,
    ChunkChoice,
    Delta,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from mlxbun.application.row_text import Piece
from mlxbun.domain.conversation import (
    CallArguments,
    CallBegun,
    CallEnded,
    Part,
    Reasoning,
    Text,
)


def call_id(reply: Reply, row: int, index: int) -> str:
    """Return the id of a row's call: unlike that of any other call of any reply."""
    return f"call_{reply.id.rpartition('-')[2]}{row:02}{index:02}"


class Said:
    """Gathers what one row says."""

    def __init__(self, reply: Reply, row: int) -> None:
        self._reply = reply
        self._row = row
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[ToolCall] = []
        self._name = ""
        self._arguments: list[str] = []

    def add(self, parts: Sequence[Part]) -> None:
        for part in parts:
            match part:
                case Text(text=text):
                    self._texts.append(text)
                case Reasoning(text=text):
                    self._thoughts.append(text)
                case CallBegun(name=name):
                    self._name, self._arguments = name, []
                case CallArguments(text=text):
                    self._arguments.append(text)
                case CallEnded(index=index):
                    function = CalledFunction(self._name, "".join(self._arguments))
                    made = ToolCall(id=call_id(self._reply, self._row, index), function=function)
                    self._calls.append(made)

    def message(self) -> AssistantMessage:
        """Return the message.  A call that was cut off is no part of it."""
        text = "".join(self._texts)
        return AssistantMessage(
            content=None if self._calls and not text else text,
            reasoning_content="".join(self._thoughts) if self._thoughts else UNSET,
            tool_calls=self._calls or UNSET,
        )


class ChatRecords:
    """The records of one stream.  A token's text is put into bytes that are built once."""

    def __init__(self, reply: Reply, num_choices: int, *, with_usage: bool) -> None:
        self._reply = reply
        self._with_usage = with_usage
        self._num_choices = num_choices
        self._texts = [self._template(i, Delta(content=sse.Template.HOLE)) for i in self._rows]
        self._thoughts = [
            self._template(i, Delta(reasoning_content=sse.Template.HOLE)) for i in self._rows
        ]

    @property
    def _rows(self) -> range:
        return range(self._num_choices)

    def roles(self) -> bytes:
        """Return the first record of each choice."""
        first = Delta(role="assistant", content="")
        return b"".join(self._record(ChunkChoice(i, first)) for i in self._rows)

    def piece(self, piece: Piece, logprobs: ChatLogprobs | None) -> bytes:
        """Return what `piece` adds: a record a part, a finish record, or nothing.

        Log-probabilities come with the last of the parts, so none before its text.
        """
        records = b""
        likely = logprobs is not None and bool(logprobs.content)
        for part in piece.parts[:-1] if likely else piece.parts:
            if isinstance(part, Text):
                records += self._texts[piece.row].fill(part.text)
            elif isinstance(part, Reasoning):
                records += self._thoughts[piece.row].fill(part.text)
            elif (delta := self._delta(piece.row, part)) is not None:
                records += self._record(ChunkChoice(piece.row, delta))
        if likely:
            delta = self._delta(piece.row, piece.parts[-1]) if piece.parts else None
            choice = ChunkChoice(piece.row, delta or Delta(content=""), logprobs)
            records += self._record(choice)
        if piece.finish is not None:
            last = ChunkChoice(piece.row, Delta(), finish_reason=piece.finish)
            records += self._record(last)
        return records

    def end(self, usage: Usage) -> bytes:
        if not self._with_usage:
            return sse.DONE
        chunk = ChatChunk(**self._reply.fields(), choices=[], usage=usage)
        return sse.record(chunk) + sse.DONE

    def _delta(self, row: int, part: Part) -> Delta | None:
        """Return what a part adds; None for the end of a call, which the next record shows."""
        match part:
            case Text(text=text):
                return Delta(content=text)
            case Reasoning(text=text):
                return Delta(reasoning_content=text)
            case CallBegun(index=index, name=name):
                function = FunctionDelta(name, "")
                made = ToolCallDelta(index, function, call_id(self._reply, row, index), "function")
                return Delta(tool_calls=[made])
            case CallArguments(index=index, text=text):
                return Delta(tool_calls=[ToolCallDelta(index, FunctionDelta(arguments=text))])
            case CallEnded():
                return None

    def _template(self, row: int, delta: Delta) -> sse.Template:
        return sse.Template(self._chunk(ChunkChoice(row, delta)))

    def _record(self, choice: ChunkChoice) -> bytes:
        return sse.record(self._chunk(choice))

    def _chunk(self, choice: ChunkChoice) -> ChatChunk:
        nothing = None if self._with_usage else msgspec.UNSET
        return ChatChunk(**self._reply.fields(), choices=[choice], usage=nothing)
