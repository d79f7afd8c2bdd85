"""The prefix cache's endpoints: what is durable, and why a request was as fast as it was."""

from __future__ import annotations

from typing import Literal

import anyio.to_thread
import msgspec

from mlxbun.adapters.http.answers import Answer, json_answer
from mlxbun.adapters.http.request import Request
from mlxbun.application.durability import FlushReport
from mlxbun.application.service import Service

FLUSH_SECONDS = 60.0
_NOTHING = FlushReport(
    durable=True,
    pending_blocks=0,
    pending_bytes=0,
    written_blocks=0,
    failed_blocks=0,
    restored_blocks=0,
    lost_blocks=0,
    bytes_written=0,
    bytes_on_disk=0,
    elapsed_ms=0.0,
    last_error=None,
)


class FlushAnswer(FlushReport, frozen=True):
    """Counts are since start; without an SSD tier all are 0, and nothing is missing."""

    ssd_tier: Literal["on", "off"] = "on"


class Cache:
    """Answers for the prefix cache of `service`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def flush(self, request: Request) -> Answer:
        """Wait until the SSD has what it is to have: 200 if it has all of it, else 503."""
        report = await anyio.to_thread.run_sync(self._service.flush, FLUSH_SECONDS)
        said = msgspec.structs.asdict(report if report is not None else _NOTHING)
        answer = FlushAnswer(**said, ssd_tier="on" if report is not None else "off")
        return json_answer(answer, status=200 if answer.durable else 503)
