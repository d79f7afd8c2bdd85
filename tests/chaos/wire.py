"""How a case is asked, and what its answer says: one raw connection a request.

An answer is judged by its bytes: a stream must end as its protocol says, or with an error that a
client can read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from msgspec import Struct

from chaos.cases import Case, Protocol

PATIENCE_SECONDS = 120.0  # nothing takes nearly as long: whoever waits longer waits for ever

Said = list[Any]  # what of an answer must always be the same


class Improper(Exception):
    """An answer that no client should get."""


class Answer(Struct, frozen=True):
    """`left`: its client did, and got only the beginning.  `refused`: nobody listened."""

    status: int
    body: bytes
    left: bool = False
    refused: bool = False


async def ask(port: int, case: Case) -> Answer:
    """Ask, and read to the end or until the client of this case leaves.

    Raises Improper where nothing comes, or the connection breaks.
    """
    await asyncio.sleep(case.delay)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return Answer(0, b"", refused=True)
    received = bytearray()
    try:
        writer.write(_request(case))
        if case.leave is None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while piece := await reader.read(65536):
                    received += piece
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(case.leave.seconds):
                    while len(received) < case.leave.num_bytes:
                        if not (piece := await reader.read(4096)):
                            break
                        received += piece
            writer.transport.abort()
            return Answer(0, bytes(received), left=True)
    except TimeoutError:
        raise Improper(
            f"nothing came for {PATIENCE_SECONDS:g} s after {received[-200:]!r}"
        ) from None
    except OSError as error:
        raise Improper(f"{error} after {received[-200:]!r}") from None
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return _parsed(bytes(received))


def _request(case: Case) -> bytes:
    lines = [f"{'GET' if case.body is None else 'POST'} {case.path} HTTP/1.1"]
    lines += ["host: x", "connection: close", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in case.headers]
    if case.body is not None:
        lines.append(f"content-length: {len(case.body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (case.body or b"")


def _parsed(received: bytes) -> Answer:
    head, _, body = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 "):
        raise Improper(f"the connection was closed after {received[:200]!r}")
    if b"transfer-encoding: chunked" in head.lower():
        body = b"".join(_chunks(body))
    return Answer(int(head.split(b" ", 2)[1]), body)


def _chunks(body: bytes) -> Iterator[bytes]:
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return
        yield body[:length]
        body = body[length + 2 :]
    raise Improper("a stream has no last chunk")


def judged(case: Case, answer: Answer) -> Said | None:
    """Return what a whole answer says; None where an error is what it says.

    Raises Improper for an answer that is neither.
    """
    if answer.status not in case.statuses:
        raise Improper(f"{answer.status} {answer.body[:300]!r}")
    if answer.status != 200:
        if not isinstance(json.loads(answer.body), dict):
            raise Improper(f"an error without an envelope: {answer.body[:300]!r}")
        return None
    if case.protocol == "other":
        json.loads(answer.body)
        return None
    if not case.streams:
        return whole(case.protocol, json.loads(answer.body))
    return _streamed(case.protocol, answer.body)


def whole(protocol: Protocol, body: Any) -> Said:
    """Return what an answer says that was not streamed."""
    match protocol:
        case "chat":
            return [[_message(c["message"]), c["finish_reason"]] for c in body["choices"]]
        case "completions":
            return [[c["text"], c["finish_reason"]] for c in body["choices"]]
        case "messages":
            return [[_block(block) for block in body["content"]], body["stop_reason"]]
        case "responses":
            return [[_item(item) for item in body["output"]], body["status"]]
        case _:
            return [[round(x, 3) for x in line["embedding"]] for line in body["data"]]


def _streamed(protocol: Protocol, body: bytes) -> Said:
    lines = [line for line in body.decode().split("\n\n") if line and line[0] != ":"]
    data = [part.partition("data: ")[2] for part in lines]
    if protocol in ("chat", "completions"):
        if data[-1] != "[DONE]":
            raise Improper(f"a stream ends in {data[-1]!r}")
        return _choices(protocol, [json.loads(line) for line in data[:-1]])
    events = [json.loads(line) for line in data]
    if protocol == "messages":
        if events[-1]["type"] != "message_stop":
            raise Improper(f"a stream ends in {events[-1]}")
        return _blocks(events)
    if events[-1]["type"] not in ("response.completed", "response.incomplete"):
        raise Improper(f"a stream ends in {str(events[-1])[:300]}")
    return whole("responses", events[-1]["response"])


def _choices(protocol: Protocol, records: list[Any]) -> Said:
    made: dict[int, list[Any]] = {}
    for record in records:
        if "error" in record:
            raise Improper(f"a stream broke: {record}")
        for choice in record["choices"]:
            if choice["index"] not in made:
                made[choice["index"]] = ["" if protocol == "completions" else {}, None]
            line = made[choice["index"]]
            if protocol == "completions":
                line[0] += choice["text"]
            else:
                _add(line[0], choice["delta"])
            if choice["finish_reason"] is not None:
                if line[1] is not None:
                    raise Improper("a choice finished twice")
                line[1] = choice["finish_reason"]
    if any(line[1] is None for line in made.values()):
        raise Improper("a choice never finished")
    said = [made[index] for index in sorted(made)]
    return said if protocol == "completions" else [[_message(m), why] for m, why in said]


def _add(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            calls = message.setdefault("tool_calls", [])
            for part in value:
                while len(calls) <= part["index"]:
                    calls.append({"function": {"name": "", "arguments": ""}})
                for key, text in part["function"].items():
                    calls[part["index"]]["function"][key] += text or ""
        elif isinstance(value, str) and name != "role":
            message[name] = message.get(name, "") + value


def _message(message: dict[str, Any]) -> Said:
    texts = {k: v for k, v in message.items() if isinstance(v, str) and v and k != "role"}
    calls = [
        [c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls") or []
    ]
    return [sorted(texts.items()), calls]


def _blocks(events: list[Any]) -> Said:
    blocks: dict[int, Any] = {}
    stop = None
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks[event["index"]] = dict(event["content_block"]) | {"json": ""}
            case "content_block_delta":
                block, delta = blocks[event["index"]], event["delta"]
                for name in ("text", "thinking"):
                    if name in delta:
                        block[name] += delta[name]
                block["json"] += delta.get("partial_json", "")
            case "message_delta":
                stop = event["delta"]["stop_reason"]
            case "error":
                raise Improper(f"a stream broke: {event}")
            case _:
                pass
    for block in blocks.values():
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"] or "{}")
    return [[_block(blocks[index]) for index in sorted(blocks)], stop]


def _block(block: dict[str, Any]) -> Said:
    return [block["type"], *(block.get(name) for name in ("text", "thinking", "name", "input"))]


def _item(item: dict[str, Any]) -> Said:
    parts = [[part["type"], part.get("text")] for part in item.get("content") or []]
    return [item["type"], parts, item.get("name"), item.get("arguments")]
