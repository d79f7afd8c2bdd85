"""The events of a Responses stream, and how one is written as a record."""

from __future__ import annotations

from typing import get_args

from msgspec import Struct

from mlxbun.adapters.http import sse
from mlxbun.adapters.http.openai_types import ChatLogprob
from mlxbun.adapters.http.responses_types import OutputItem, OutputText, Response, SummaryText


class Event(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Events of one stream are numbered from 0."""

    sequence_number: int


class Lifecycle(Event, frozen=True, kw_only=True):
    response: Response


class Created(Lifecycle, frozen=True, kw_only=True, tag="response.created"): ...


class InProgress(Lifecycle, frozen=True, kw_only=True, tag="response.in_progress"): ...


class Completed(Lifecycle, frozen=True, kw_only=True, tag="response.completed"): ...


class Incomplete(Lifecycle, frozen=True, kw_only=True, tag="response.incomplete"): ...


class Failed(Lifecycle, frozen=True, kw_only=True, tag="response.failed"): ...


class ItemAdded(Event, frozen=True, kw_only=True, tag="response.output_item.added"):
    output_index: int
    item: OutputItem


class ItemDone(Event, frozen=True, kw_only=True, tag="response.output_item.done"):
    output_index: int
    item: OutputItem


class OfItem(Event, frozen=True, kw_only=True):
    item_id: str
    output_index: int


class PartAdded(OfItem, frozen=True, kw_only=True, tag="response.content_part.added"):
    content_index: int = 0
    part: OutputText


class PartDone(OfItem, frozen=True, kw_only=True, tag="response.content_part.done"):
    content_index: int = 0
    part: OutputText


class TextDelta(OfItem, frozen=True, kw_only=True, tag="response.output_text.delta"):
    content_index: int = 0
    delta: str
    logprobs: list[ChatLogprob] = []


class TextDone(OfItem, frozen=True, kw_only=True, tag="response.output_text.done"):
    content_index: int = 0
    text: str
    logprobs: list[ChatLogprob] = []


class SummaryAdded(OfItem, frozen=True, kw_only=True, tag="response.reasoning_summary_part.added"):
    summary_index: int = 0
    part: SummaryText


class SummaryDelta(OfItem, frozen=True, kw_only=True, tag="response.reasoning_summary_text.delta"):
    summary_index: int = 0
    delta: str


class SummaryTextDone(
    OfItem, frozen=True, kw_only=True, tag="response.reasoning_summary_text.done"
):
    summary_index: int = 0
    text: str


class SummaryDone(OfItem, frozen=True, kw_only=True, tag="response.reasoning_summary_part.done"):
    summary_index: int = 0
    part: SummaryText


class ArgumentsDelta(
    OfItem, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    delta: str


class ArgumentsDone(OfItem, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class InputDelta(OfItem, frozen=True, kw_only=True, tag="response.custom_tool_call_input.delta"):
    delta: str


class InputDone(OfItem, frozen=True, kw_only=True, tag="response.custom_tool_call_input.done"):
    input: str


class Keepalive(Event, frozen=True, kw_only=True, tag="keepalive"):
    """Nothing happened, but the stream lives.  Its number is that of the event before."""


AnyEvent = (
    Created | InProgress | Completed | Incomplete | Failed | ItemAdded | ItemDone | PartAdded
    | PartDone | TextDelta | TextDone | SummaryAdded | SummaryDelta | SummaryTextDone | SummaryDone
    | ArgumentsDelta | ArgumentsDone | InputDelta | InputDone | Keepalive
)  # fmt: skip

LAST: dict[str, type[Completed] | type[Incomplete] | type[Failed]] = {
    "completed": Completed,
    "incomplete": Incomplete,
    "cancelled": Incomplete,  # the protocol has no event of its own for it
    "failed": Failed,
}


_HEADS = {
    kind: f"event: {kind.__struct_config__.tag}\ndata: ".encode() for kind in get_args(AnyEvent)
}


def record(event: AnyEvent) -> bytes:
    """Return the event as it is sent."""
    return _HEADS[type(event)] + sse.encode(event) + b"\n\n"
