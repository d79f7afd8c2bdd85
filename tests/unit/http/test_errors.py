from __future__ import annotations

import json
from typing import get_args

import pytest

from mlxbun.adapters.http.errors import RULES, refusal_answer, refusal_record
from mlxbun.domain.refusal import Code, Refused

CODES = get_args(Code)


@pytest.mark.parametrize("code", CODES)
def test_every_refusal_has_a_status_and_the_whole_envelope(code: Code) -> None:
    answer = refusal_answer(Refused(code, "because", "field"))
    assert answer.status == RULES[code].status
    assert json.loads(answer.body)["error"] == {
        "message": "because", "type": RULES[code].type, "param": "field", "code": code,
    }  # fmt: skip


@pytest.mark.parametrize("code", CODES)
def test_only_what_a_retry_can_mend_asks_for_one(code: Code) -> None:
    headers = dict(refusal_answer(Refused(code, "because")).headers)
    retried = RULES[code].status in (429, 503)
    assert ("retry-after" in headers) == retried


def test_a_stream_breaks_with_one_data_record() -> None:
    record = refusal_record(Refused("engine_failed", "two\nlines"))
    assert record.startswith(b"data: {") and record.endswith(b"}\n\n")
    assert record.count(b"\n") == 2
    assert json.loads(record.removeprefix(b"data: "))["error"]["message"] == "two\nlines"
