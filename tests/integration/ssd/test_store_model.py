"""Whatever is done to a store, and to its files behind its back, it holds what the model holds."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)

from doubles.block_store import Content, DictBlockStore
from doubles.kept_ids_store import DictKeptIds
from mlxbun.adapters.ssd.container import encode
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.domain.blocks import BlockInfo, BlockKey, BlockLost, Namespace, StoreFailed, Tensor
from mlxbun.domain.kept_ids import kept_as

ONE, OTHER = Namespace("11" * 32), Namespace("22" * 32)
Name = tuple[Namespace, BlockKey]
namespaces = st.sampled_from([ONE, OTHER])
contents = st.integers(0, 5).map(lambda number: bytes([number]) * (16 << number))
Damage = Callable[[Path], None]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


texts = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 9), max_size=3))
damages = st.sampled_from([flip, cut, Path.unlink])


def file_of(content: Content) -> tuple[str, int]:
    encoded = encode([Tensor(*fields) for fields in content])
    return encoded.content, encoded.num_bytes


class StoreMachine(RuleBasedStateMachine):
    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.time = 1000.0
        self.model = DictBlockStore(lambda: self.time, lambda content: file_of(content)[1])
        self.texts = DictKeptIds()
        self.numbers = itertools.count()
        self.store = open_block_store(self.folder, now=lambda: self.time, verify="always")

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    def block(self, parent: BlockKey | None, data: bytes) -> tuple[BlockInfo, list[Tensor]]:
        key = BlockKey(f"{next(self.numbers):064x}")
        info = BlockInfo(key, parent, "block", 0, 256, len(data))
        return info, [Tensor("keys", "U8", (len(data),), data)]

    @rule(seconds=st.sampled_from([0.0, 1.0, 86400.0, -5.0]))
    def time_goes_on_or_back(self, seconds: float) -> None:
        self.time += seconds

    @rule(target=names, of=namespaces, chain=st.lists(contents, min_size=1, max_size=4))
    def commit_a_chain(self, of: Namespace, chain: list[bytes]) -> object:
        return self.commit(of, None, chain)

    @rule(target=names, after=names, chain=st.lists(contents, min_size=1, max_size=2))
    def extend(self, after: Name, chain: list[bytes]) -> object:
        if after not in self.model.blocks:
            with pytest.raises(StoreFailed, match="parent"):
                self.store.commit(after[0], [self.block(after[1], chain[0])])
            return multiple()
        return self.commit(after[0], after[1], chain)

    def commit(self, of: Namespace, parent: BlockKey | None, chain: list[bytes]) -> object:
        blocks: list[tuple[BlockInfo, list[Tensor]]] = []
        for data in chain:
            blocks.append(self.block(parent, data))
            parent = blocks[-1][0].key
        blocks.reverse()
        assert self.store.commit(of, blocks) == self.model.commit(of, blocks)
        return multiple(*((of, info.key) for info, _ in blocks))

    @rule(name=names)
    def commit_again(self, name: Name) -> None:
        if kept := self.model.blocks.get(name):
            tensors = [Tensor(*fields) for fields in kept.content]
            assert self.store.commit(name[0], [(kept.info, tensors)]).num_blocks == 0

    @rule(name=names)
    def read(self, name: Name) -> None:
        try:
            expected = self.model.read(*name)
        except BlockLost:
            with pytest.raises(BlockLost):
                self.store.read(*name)
        else:
            read = self.store.read(*name)
            assert [(t.name, t.dtype, t.shape, bytes(t.data)) for t in read] == [
                (t.name, t.dtype, t.shape, t.data) for t in expected
            ]

    @rule(some=st.lists(names, max_size=3))
    def use(self, some: list[Name]) -> None:
        for namespace, key in some:
            self.store.used(namespace, [key])
            self.model.used(namespace, [key])

    @rule(share=st.floats(0.4, 1))
    def shrink(self, share: float) -> None:
        goal = int(share * self.model.num_bytes())
        assert self.store.shrink(goal) == self.model.shrink(goal)

    @rule(name=consumes(names))
    def purge(self, name: Name) -> None:
        gone = [of for of in self.model.blocks if of[0] == name[0]]
        assert self.store.purge(name[0]) == len(gone)
        for of in gone:
            del self.model.blocks[of]
        self.texts.kept.pop(name[0], None)

    @rule(of=namespaces, new=texts, gone=texts)
    def keep_ids(
        self, of: Namespace, new: dict[str, list[int]], gone: dict[str, list[int]]
    ) -> None:
        kept, left = ([kept_as(*one) for one in said.items()] for said in (new, gone))
        assert self.store.kept_ids.save(of, kept, left) == self.texts.save(of, kept, left)

    @precondition(lambda self: self.model.blocks)
    @rule(name=names, damage=damages)
    def damage(self, name: Name, damage: Damage) -> None:
        """Damage a file; the next to read it finds out, and loses what depends on it."""
        if kept := self.model.blocks.get(name):
            content = file_of(kept.content)[0]
            damage(self.folder / "objects" / content[:2] / f"{content}.safetensors")
            self.model.damage(*name)
            self.read(name)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = open_block_store(self.folder, now=lambda: self.time, verify="always")

    @rule(name=names, damage=st.sampled_from([cut, Path.unlink]))
    def damage_while_closed(self, name: Name, damage: Damage) -> None:
        """Damage a file in a way that shows in its length; the next start finds out."""
        self.store.close()
        if kept := self.model.blocks.get(name):
            content = file_of(kept.content)[0]
            damage(self.folder / "objects" / content[:2] / f"{content}.safetensors")
            self.model.forget(kept.content)
        self.store = open_block_store(self.folder, now=lambda: self.time, verify="always")

    @invariant()
    def what_is_known_is_what_the_model_knows(self) -> None:
        for namespace in (ONE, OTHER):
            assert self.store.known(namespace) == self.model.known(namespace)
            assert self.store.kept_ids.load(namespace) == self.texts.load(namespace)
        assert self.store.num_bytes() == self.model.num_bytes()

    @invariant()
    def every_file_is_needed_and_every_needed_file_is_there(self) -> None:
        found = {path.stem for path in (self.folder / "objects").rglob("*.*")}
        assert found == {file_of(content)[0] for content in self.model.contents()}
        assert not list((self.folder / "staging").iterdir())


StoreMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestStoreMachine = StoreMachine.TestCase
