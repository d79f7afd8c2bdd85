"""Talking in a terminal: the answer is what a pipe gets, thoughts stand beside it."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal

from doubles import server
from doubles.carrier import running
from mlxbun.adapters.cli.talk import Talk
from mlxbun.application.row_specs import Ask
from mlxbun.application.settings import Settings


@pytest.fixture
def talk() -> Iterator[tuple[Talk, io.StringIO, io.StringIO]]:
    out, aside = io.StringIO(), io.StringIO()
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(running(server.service())) as service,
    ):
        yield Talk(portal, service, Ask("t", 0), Settings(), out, aside), out, aside


def test_thoughts_stand_beside_the_answer(talk: tuple[Talk, io.StringIO, io.StringIO]) -> None:
    talking, out, aside = talk
    said = "[say:<think>Hm.</think>Yes.]"
    answer = talking.answer([{"role": "user", "content": said}])
    assert answer.text == out.getvalue() == "Yes."
    assert aside.getvalue() == "Hm.\n\n"
    talking.answer([{"role": "user", "content": "[say:No.]"}])
    assert (out.getvalue(), aside.getvalue()) == ("Yes.No.", "Hm.\n\n")
