"""An answer's parts as content blocks: numbered from 0, one after the other, never one in another.

A call is told when it is complete, since one that is cut off must not reach a client by half.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator
from typing import Any, Literal, assert_never

from msgspec.structs import replace

from mlxbun.adapters.http import sse
from mlxbun.adapters.http.anthropic_types import (
    BlockDelta,
    BlockStart,
    BlockStop,
    ContentBlock,
    InputDelta,
    MessageEvent,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from mlxbun.domain.conversation import CallArguments, CallBegun, CallEnded, Part, Reasoning, Text

# Clients drop thoughts that are not signed, and hand signed ones back; nobody checks it.
SIGNATURE = "bWx4YnVuLXVuc2lnbmVk"


class Blocks:
    """Turns parts into events.  `omit_thinking` sends a thought's signature without its text."""

    def __init__(self, *, omit_thinking: bool = False) -> None:
        self._omit_thinking = omit_thinking
        self._index = -1
        self._open: Literal["text", "thinking"] | None = None
        self._calls: dict[int, tuple[str, list[str]]] = {}  # name and arguments, not complete

    def add(self, parts: Iterable[Part]) -> Iterator[MessageEvent]:
        for part in parts:
            match part:
                case Text(text=text):
                    yield from self._begin("text")
                    yield BlockDelta(self._index, TextDelta(text))
                case Reasoning(text=text):
                    yield from self._begin("thinking")
                    if not self._omit_thinking:
                        yield BlockDelta(self._index, ThinkingDelta(text))
                case CallBegun(index=index, name=name):
                    self._calls[index] = (name, [])
                case CallArguments(index=index, text=text):
                    self._calls[index][1].append(text)
                case CallEnded(index=index):
                    yield from self._call(*self._calls.pop(index))
                case _:
                    assert_never(part)

    def end(self) -> Iterator[MessageEvent]:
        """Yield what closes the last block; an answer of nothing is one empty text."""
        if self._index < 0:
            yield from self._begin("text")
        yield from self._close()

    def _begin(self, kind: Literal["text", "thinking"]) -> Iterator[MessageEvent]:
        if self._open == kind:
            return
        yield from self._close()
        self._index += 1
        self._open = kind
        block = TextBlock("") if kind == "text" else ThinkingBlock("", "")
        yield BlockStart(self._index, block)

    def _close(self) -> Iterator[MessageEvent]:
        if self._open is None:
            return
        if self._open == "thinking":
            yield BlockDelta(self._index, SignatureDelta(SIGNATURE))
        self._open = None
        yield BlockStop(self._index)

    def _call(self, name: str, arguments: list[str]) -> Iterator[MessageEvent]:
        yield from self._close()
        self._index += 1
        call_id = f"toolu_{secrets.token_hex(12)}"
        yield BlockStart(self._index, ToolUseBlock(call_id, name, {}))
        yield BlockDelta(self._index, InputDelta("".join(arguments) or "{}"))
        yield BlockStop(self._index)


class Content:
    """The blocks that events make: what a client has at the end of a stream."""

    def __init__(self) -> None:
        self._blocks: list[ContentBlock] = []
        self._pieces: list[str] = []

    def apply(self, event: MessageEvent) -> None:
        match event:
            case BlockStart(content_block=block):
                self._blocks.append(block)
            case BlockDelta(delta=TextDelta(text=text)):
                self._pieces.append(text)
            case BlockDelta(delta=ThinkingDelta(thinking=text)):
                self._pieces.append(text)
            case BlockDelta(delta=InputDelta(partial_json=text)):
                self._pieces.append(text)
            case BlockDelta(delta=SignatureDelta(signature=signature)):
                block = self._blocks[-1]
                assert isinstance(block, ThinkingBlock)
                self._blocks[-1] = replace(block, signature=signature)
            case BlockStop():
                self._fill("".join(self._pieces))
                self._pieces.clear()
            case _:
                pass

    @property
    def blocks(self) -> list[ContentBlock]:
        return self._blocks

    def _fill(self, text: str) -> None:
        block = self._blocks[-1]
        match block:
            case TextBlock():
                self._blocks[-1] = TextBlock(text)
            case ThinkingBlock():
                self._blocks[-1] = replace(block, thinking=text)
            case ToolUseBlock():
                self._blocks[-1] = replace(block, input=json.loads(text))
            case _:
                assert_never(block)


class Records:
    """Events as bytes.  A delta's text is put into bytes that are built once a block."""

    def __init__(self) -> None:
        self._template: sse.Template | None = None

    def write(self, events: Iterable[MessageEvent]) -> bytes:
        return b"".join(map(self._record, events))

    def _record(self, event: MessageEvent) -> bytes:
        if isinstance(event, BlockStart):
            self._template = None
        if isinstance(event, BlockDelta):
            match event.delta:
                case TextDelta(text=text):
                    return self._filled(event.index, TextDelta(sse.Template.HOLE), text)
                case ThinkingDelta(thinking=text):
                    return self._filled(event.index, ThinkingDelta(sse.Template.HOLE), text)
                case _:
                    pass
        return record(event)

    def _filled(self, index: int, delta: TextDelta | ThinkingDelta, text: str) -> bytes:
        if self._template is None:
            self._template = sse.Template(BlockDelta(index, delta), "content_block_delta")
        return self._template.fill(text)


def record(event: MessageEvent) -> bytes:
    """Return an event as a record that names its type."""
    tag: Any = event.__struct_config__.tag
    return sse.record(event, tag)


def ping() -> bytes:
    return _PING


_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
