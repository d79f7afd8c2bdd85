#!/usr/bin/env python3
"""Measures what a streamed token costs the server's event loop, without a model or a network.

    .venv/bin/python scripts/bench/front.py --model tiny-llama --streams 64 --json out.json

The text side is real: a model's own tokenizer and markup, the endpoints, the records.  The
engine gives every stream a token a turn, as one that decodes does, and nobody takes the bytes.
Figures are the CPU time of the loop's thread for a token, the least of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from mlxbun.adapters.bench import cpu
from mlxbun.adapters.bench.models import find_model
from mlxbun.adapters.http.rsgi import RsgiApp
from mlxbun.application.requests import Accepted, Drawn, Mailbox, Outbox, RequestSpec
from mlxbun.application.service import Service
from mlxbun.application.settings import parse
from mlxbun.composition_root.container import open_service
from mlxbun.domain.sampling import FinishReason, RequestId, TokenId

TURNS = 200  # a round
LOOPS = 6  # of the event loop, in which a token has been written
TEXT = "The harbour was quiet when the first boat came in, and the keeper was still at sea.\n"
ASKED: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}]},
    "/v1/completions": {"prompt": TEXT},
    "/v1/responses": {"input": TEXT, "store": False},
    "/v1/messages": {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 8000},
}


class Turns:
    """In place of the engine: whoever is admitted gets a token a turn."""

    def __init__(self, num_streams: int) -> None:
        self.mailboxes: list[Mailbox] = []
        self.full = asyncio.Event()
        self._num_streams = num_streams

    def submit(self, spec: RequestSpec, mailbox: Mailbox) -> None:
        self.mailboxes.append(mailbox)
        mailbox.put(Accepted())
        if len(self.mailboxes) == self._num_streams:
            self.full.set()

    def finish(self, request_id: RequestId, reason: FinishReason) -> None: ...

    def cancel(self, request_id: RequestId) -> None: ...


class Client:
    """In place of Granian: one request, whose answer is counted and dropped."""

    proto, method, query_string = "http", "POST", ""

    def __init__(self, path: str, body: bytes) -> None:
        self.path, self.num_records = path, 0
        self.headers = {"content-type": "application/json"}
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body

    async def client_disconnect(self) -> None:
        await asyncio.Event().wait()

    def response_stream(self, status: int, headers: Any) -> Client:
        return self

    def response_bytes(self, status: int, headers: Any, body: bytes) -> None:
        raise SystemExit(f"{self.path}: {status}: {body.decode()}")

    async def send_bytes(self, data: bytes) -> None:
        self.num_records += 1


async def measure(service: Service, path: str, num_streams: int, num_rounds: int) -> float:
    """Return microseconds a token."""
    turns = Turns(num_streams)
    service.engine = turns  # type: ignore[assignment]  # of which no more is needed here
    app = RsgiApp(service)
    body = json.dumps({"model": (await service.model()).card.id, **ASKED[path], "stream": True})
    clients = [Client(path, body.encode()) for _ in range(num_streams)]
    tasks = [asyncio.ensure_future(app.__rsgi__(c, c)) for c in clients]  # type: ignore[arg-type]
    await turns.full.wait()
    await asyncio.sleep(0.1)  # for what is said before a token
    gc.collect()
    gc.freeze()  # as the server does
    ids = cycle((await service.model()).tokenizer.encode(TEXT, add_special=False))
    found = [await _round(service, turns, list(islice(ids, TURNS))) for _ in range(num_rounds)]
    least = num_rounds * TURNS * num_streams // 2  # some tokens bring no text of their own
    assert sum(client.num_records for client in clients) > least, "the loop did not keep up"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return 1e6 * min(found) / TURNS / num_streams


async def _round(service: Service, turns: Turns, ids: list[TokenId]) -> float:
    began = time.thread_time()
    for token_id in ids:
        drawn = Drawn(token_id, None)
        service.deliver(Outbox(tuple((mailbox, drawn) for mailbox in turns.mailboxes), None))
        for _ in range(LOOPS):
            await asyncio.sleep(0)
    return time.thread_time() - began


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny-llama", help="folder, demo, or tiny-NAME")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    said = parser.parse_args()
    settings = parse([str(find_model(said.model))], {})
    results = []
    async with open_service(settings) as service:
        for path in ASKED:
            engine = service.engine
            cost = await measure(service, path, said.streams, said.rounds)
            service.engine = engine
            results.append({"path": path, "streams": said.streams, "us_a_token": cost})
            print(f"{path:22}{cost:7.1f} us a token, {said.streams} streams", flush=True)
    if said.json:
        found = {
            "date": str(datetime.now(UTC).date()),
            "machine": cpu.machine(),
            "results": results,
        }
        said.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
