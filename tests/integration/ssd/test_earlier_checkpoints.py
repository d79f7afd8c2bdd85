"""Checkpoints of the first format: nobody finds them any more, and they leave with their state."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from doubles.blocks import ONE, block, key
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.adapters.ssd.store import SsdBlockStore
from mlxbun.domain.generation_checkpoint import Bounds, GenerationCheckpoint, GenerationKey
from mlxbun.domain.sampling import TokenId

NAME = GenerationKey("9" * 64)


@pytest.fixture
def store(tmp_path: Path) -> SsdBlockStore:
    """Return a store with a checkpoint of the first format, whose row names its state."""
    store = open_block_store(tmp_path / "cache", now=lambda: 1000.0)
    store.commit(ONE, [block(1)])
    state = msgspec.to_builtins(block(1)[0])
    record = json.dumps({"key": NAME, "token_ids": [5, 6], "state": state}).encode()
    values = (NAME, key(1), 10, record, hashlib.sha256(record).hexdigest(), 900.0)
    with store._manifest.connections.transaction() as db:  # pyright: ignore[reportPrivateUsage]
        db.execute(
            "INSERT INTO generations (namespace, key, state, num_bytes, record, digest, saved)"
            " VALUES ((SELECT id FROM namespaces), ?, ?, ?, ?, ?, ?)",
            values,
        )
    return store


def test_it_is_as_none_and_takes_its_state_along(store: SsdBlockStore) -> None:
    assert list(store.generations.keys(ONE)) == [NAME]
    assert store.generations.load(ONE, NAME) is None
    assert list(store.generations.keys(ONE)) == [] and store.num_bytes() == 0
    store.close()


def test_it_leaves_when_its_time_is_up(store: SsdBlockStore) -> None:
    assert list(store.generations.prune(ONE, Bounds(max_age_seconds=99.0))) == [NAME]
    assert store.num_bytes() == 0
    store.close()


def test_a_new_one_takes_its_place(store: SsdBlockStore) -> None:
    saved = GenerationCheckpoint(NAME, (TokenId(5),), (block(2)[0],))
    store.generations.save(ONE, saved, [block(2)])
    loaded = store.generations.load(ONE, NAME)
    assert loaded is not None and loaded[0] == saved
    assert [info.key for info in store.known(ONE)] == [key(2)]
    store.close()
