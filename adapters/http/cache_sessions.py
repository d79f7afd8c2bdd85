"""Sessions of the prefix cache: closing one."""

from __future__ import annotations

import anyio.to_thread
import msgspec
from msgspec import Struct

from mlxbun.adapters.http.affinity import session_of
from mlxbun.adapters.http.answers import Answer, json_answer
from mlxbun.adapters.http.request import Request, decode
from mlxbun.application.service import Service

CLOSE_SECONDS = 10.0  # that a step may take; sessions are closed between steps


class CloseRequest(Struct, frozen=True):
    session_id: str | int | None = None


class SessionClosed(Struct, frozen=True):
    """Whether a session was named, and what of it in memory no session holds any more."""

    closed: bool
    released_blocks: int = 0
    released_bytes: int = 0


class CacheSessions:
    """Answers for the sessions of `service`'s prefix cache."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._decoder = msgspec.json.Decoder(CloseRequest)

    async def close(self, request: Request) -> Answer:
        """Let what a session holds leave memory as anything else does; nothing is deleted."""
        body = decode(self._decoder, request.body or b"{}")
        name = session_of(request.head.headers, body.session_id)
        if name is None:
            return json_answer(SessionClosed(closed=False))
        close = self._service.close_session
        released = await anyio.to_thread.run_sync(close, name, CLOSE_SECONDS)
        return json_answer(SessionClosed(True, released.num_blocks, released.num_bytes))
