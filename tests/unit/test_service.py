"""What the engine says reaches whom it is for, whatever else becomes of it."""

from __future__ import annotations

from typing import NoReturn

import pytest

from doubles.server import service
from mlxbun.application.requests import Ended, Item, Outbox
from mlxbun.domain.journal import EventBatch


class Client:
    def __init__(self) -> None:
        self.items: list[Item] = []

    def put(self, item: Item) -> None:
        self.items.append(item)


class Deaf:
    def put(self, item: Item) -> None:
        raise RuntimeError("a fault of ours")


def test_a_mailbox_that_breaks_costs_no_other_its_items() -> None:
    client, called = Client(), list[int]()
    items = ((Deaf(), Ended("stop")), (client, Ended("stop")))
    delivered(Outbox(items, None, (lambda: called.append(1),)))
    assert (client.items, called) == ([Ended("stop")], [1])


def test_a_count_that_breaks_costs_nobody_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    client, called = Client(), list[int]()

    def broken(*_: object) -> NoReturn:
        raise KeyError("a fault of ours")

    made = service()
    monkeypatch.setattr(made.projection, "apply", broken)
    outbox = Outbox(((client, Ended("stop")),), EventBatch(1, ()), (lambda: called.append(1),))
    with pytest.raises(KeyError):
        made.deliver(outbox)
    assert (client.items, called) == ([Ended("stop")], [1])


def delivered(outbox: Outbox) -> None:
    service().deliver(outbox)
