"""Opening what outlives the process: the SSD tier's store, its threads, checkpoints of answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxbun.adapters.ssd.store import SsdBlockStore
    from mlxbun.application.generation_disk import GenerationDisk, Report
    from mlxbun.application.persistence import Persistence
    from mlxbun.application.settings import Settings
    from mlxbun.domain.blocks import BlockInfo
    from mlxbun.domain.checkpoint import Identity
    from mlxbun.domain.steps import Compute


def identity_of(folder: Path, settings: Settings, numerics: str) -> Identity:
    from mlxbun.adapters.hub.fingerprint import file_digests
    from mlxbun.domain.checkpoint import Identity

    digests = file_digests(folder, Path(settings.cache).expanduser() / "digests.json")
    return Identity(digests, "plain", numerics)


def open_store(
    settings: Settings, identity: Identity
) -> tuple[SsdBlockStore | None, Sequence[BlockInfo], float, str]:
    """Open the SSD tier's folder; see what it has for this model, and how fast that reads prompts.

    Without it the cache is in RAM only; the last item says why, or where the folder is.
    """
    import logging

    from mlxbun.adapters.ssd.opening import open_block_store
    from mlxbun.domain.blocks import StoreFailed

    assert settings.ssd_cache is not None
    budget = int(settings.ssd_write_budget_gigabytes * 2**30)
    store: SsdBlockStore | None = None
    try:
        store = open_block_store(
            Path(settings.ssd_cache),
            verify=settings.ssd_cache_verify,
            daily_budget_bytes=budget or None,
            layout=settings.ssd_layout,
        )
        store.describe(identity.namespace, identity.text)
        known, rate = store.known(identity.namespace), store.prefill_rate(identity.namespace)
        return store, known, rate, settings.ssd_cache
    except StoreFailed as error:
        logging.getLogger("mlxbun").warning("the SSD cache is off: %s", error)
        if store is not None:
            store.close()
        return None, (), 0.0, str(error)


def make_persistence(
    settings: Settings,
    store: SsdBlockStore,
    identity: Identity,
    compute: Compute,
    report: Callable[[Report], None],
    known: Sequence[BlockInfo],
) -> Persistence:
    from mlxbun.application.persistence import Persistence

    max_bytes = int(settings.ssd_cache_max_gigabytes * 2**30)
    persistence = Persistence(
        store,
        identity.namespace,
        tensors=compute.tensors,
        report=report,
        max_bytes=max_bytes or None,
        known=known,
        kept_ids=store.kept_ids,
    )
    persistence.start()
    return persistence


def make_generations(
    store: SsdBlockStore,
    identity: Identity,
    compute: Compute,
    report: Callable[[Report], None],
) -> tuple[GenerationDisk | None, str]:
    """Return the disk of checkpoints, beside the blocks; without it, why."""
    import logging

    from mlxbun.application.generation_disk import GenerationDisk
    from mlxbun.domain.blocks import StoreFailed

    disk = GenerationDisk(
        store.generations, store, identity.namespace, tensors=compute.tensors, report=report
    )
    try:
        store.describe(disk.namespace, f"interrupted answers of {identity.namespace[:12]}")
        disk.start()
    except StoreFailed as error:
        logging.getLogger("mlxbun").warning("checkpoints of answers are off: %s", error)
        return None, str(error)
    return disk, ""
