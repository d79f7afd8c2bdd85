"""A worker whose parent is gone ends once."""

from __future__ import annotations

import threading

from mlxbun.adapters.http.parentage import end_with_parent


def test_a_worker_ends_once_when_its_parent_is_gone() -> None:
    parents = iter([40, 40, 40, 1])
    ended: list[bool] = []
    over = threading.Event()

    def end() -> None:
        ended.append(True)
        over.set()

    thread = end_with_parent(lambda: next(parents), end, look_seconds=0.001)
    assert over.wait(10)
    thread.join(10)
    assert ended == [True]
