from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from doubles import server
from doubles.carrier import Carrier, running


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def carrier() -> AsyncIterator[Carrier]:
    """A front over a service that serves a scripted model."""
    async with running(server.service()) as service:
        await service.model()
        yield Carrier(service)
