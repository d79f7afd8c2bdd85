from __future__ import annotations

from typing import Any

import pytest

from mlxbun.application.event_log import EventLog
from mlxbun.application.responses_store import ResponsesStore, StoredResponse
from mlxbun.domain.refusal import Refused


def stored(name: str, *item_ids: str, text: str = "") -> StoredResponse:
    items: list[dict[str, Any]] = [{"id": item_id, "text": text} for item_id in item_ids]
    return StoredResponse({"id": f"resp_{name}", "output": [{"id": f"msg_{name}"}]}, items)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> ResponsesStore:
    return ResponsesStore(max_bytes=400, ttl_seconds=3600, now=clock)


def test_what_is_kept_comes_back_as_it_was_with_its_history(store: ResponsesStore) -> None:
    store.keep(stored("a", "in_1"))
    assert store.find("resp_a") == stored("a", "in_1") == store.previous("resp_a")
    assert [item["id"] for item in store.find("resp_a").history] == ["in_1", "msg_a"]
    assert store.item("msg_a", "input[0]") == {"id": "msg_a"}


def test_what_expired_or_was_deleted_is_refused_in_the_words_that_clients_know(
    store: ResponsesStore, clock: Clock
) -> None:
    store.keep(stored("a"))
    clock.now = 3600
    with pytest.raises(Refused) as caught:
        store.previous("resp_a")
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.field == "previous_response_id"
    assert caught.value.message.startswith("Previous response with id 'resp_a' not found.")
    store.keep(stored("b"))
    store.delete("resp_b")
    for ask in (store.find, store.delete):
        with pytest.raises(Refused) as caught:
            ask("resp_b")
        assert caught.value.code == "not_found"
    with pytest.raises(Refused) as caught:
        store.item("msg_b", "input[2]")
    assert caught.value.field == "input[2]"


def test_an_item_is_found_as_long_as_any_response_holds_it(store: ResponsesStore) -> None:
    store.keep(stored("a", "in_1"))
    store.keep(stored("b", "in_1", "msg_a"))
    store.delete("resp_b")
    assert store.item("in_1", "input[0]")["id"] == "in_1"
    store.delete("resp_a")
    with pytest.raises(Refused):
        store.item("in_1", "input[0]")
    assert store.report().bytes == store.report().entries == 0


def test_the_oldest_make_room_and_a_giant_is_not_kept(store: ResponsesStore) -> None:
    for name in "abcdefgh":
        store.keep(stored(name, "in_1"))
        assert store.report().bytes <= 400
    assert 0 < store.report().entries < 8
    assert store.find("resp_h")
    with pytest.raises(Refused):
        store.find("resp_a")
    before = store.report()
    store.keep(stored("giant", "in_1", text="x" * 500))
    assert store.report() == before
    with pytest.raises(Refused):
        store.find("resp_giant")


def log_of(*records: bytes) -> EventLog:
    log = EventLog()
    for number, record in enumerate(records):
        log.add(number, record)
    log.close()
    return log


def test_what_a_stream_said_is_kept_beside_its_response_and_counts(store: ResponsesStore) -> None:
    store.keep(stored("a"))
    alone = store.report().bytes
    log = log_of(b"one", b"two")
    store.keep(stored("a"), log)
    assert store.log("resp_a") is log
    assert store.report().bytes == alone + log.num_bytes
    store.keep(stored("b"))
    assert store.log("resp_b") is None
    store.delete("resp_a")
    with pytest.raises(Refused) as caught:
        store.log("resp_a")
    assert (caught.value.code, caught.value.field) == ("not_found", "id")


def test_what_a_stream_said_is_left_out_where_it_has_no_room(store: ResponsesStore) -> None:
    log = log_of(*(bytes([i] * 3 + [i * 7 % 251]) for i in range(256)))
    assert log.num_bytes > 400
    store.keep(stored("a"), log)
    assert (store.find("resp_a"), store.log("resp_a")) == (stored("a"), None)
