"""One process's container: providers of the journal, the engine, the service and the app."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxbun.application.service import Service
    from mlxbun.application.settings import Settings
    from mlxbun.composition_root.opening import Opening
    from mlxbun.domain.scheduling import Limits


def make_container(settings: Settings, address: str = "") -> Any:
    """Return the container of one process: providers of the journal, engine, service and app.

    `address` is where clients find the app, where that is known.
    """
    from dependency_injector import containers, providers

    from mlxbun.adapters.http.rsgi import RsgiApp
    from mlxbun.adapters.journal import RingJournal
    from mlxbun.application.engine import Engine
    from mlxbun.composition_root.opening import Opening

    class Container(containers.DeclarativeContainer):
        config = providers.Object(settings)
        journal = providers.Singleton(RingJournal, settings.journal_size)
        opening = providers.Singleton(Opening, settings)
        engine = providers.Singleton(
            Engine,
            opening.provided.compute,
            limits_of(settings),
            journal,
            leave_thread=leave_mlx,
            open_prefixes=opening.provided.prefixes,
            open_checkpoints=opening.provided.checkpoints,
        )
        service = providers.Singleton(make_service, settings, engine, opening)
        app = providers.Singleton(
            RsgiApp,
            service,
            max_body_bytes=settings.max_body_bytes,
            api_key=settings.api_key,
            allow_origins=settings.allow_origin,
            template_arguments=template_arguments_of(settings),
            keepalive_seconds=settings.keepalive_seconds,
            shutdown_seconds=settings.shutdown_timeout_seconds,
            address=address,
        )

    return Container()


def make_service(settings: Settings, engine: Any, opening: Opening) -> Service:
    from mlxbun.application.service import Service
    from mlxbun.application.settings import effective

    service = Service(
        engine,
        settings.sampling_defaults(),
        settings.max_tokens,
        lambda: effective(settings, opening.decided),
        lambda: opening.persistence,
        lambda: opening.generations,
    )
    opening.opened, opening.report = service.opened, engine.report
    return service


@asynccontextmanager
async def open_service(settings: Settings) -> AsyncGenerator[Service, None]:
    """Yield a service on the running event loop; leaving stops it."""
    import asyncio

    service: Service = make_container(settings).service()
    service.start(asyncio.get_running_loop().call_soon_threadsafe)
    try:
        yield service
    finally:
        service.stop()


def limits_of(settings: Settings) -> Limits:
    from mlxbun.domain.scheduling import Limits

    return Limits(
        max_rows=settings.batch,
        max_waiting=settings.max_waiting,
        max_chunk_tokens=settings.prefill_chunk,
        adaptive_chunks=not settings.l1,
    )


def template_arguments_of(settings: Settings) -> dict[str, Any]:
    return {} if settings.thinking == "auto" else {"enable_thinking": settings.thinking == "on"}


def leave_mlx() -> None:
    """Leave MLX on the engine's thread, if it was ever entered."""
    if "mlx.core" in sys.modules:
        from mlxbun.adapters.mlx_compute.opening import leave_thread

        leave_thread()
