from __future__ import annotations

import json
from typing import get_args

import anthropic.types
import pytest

from mlxbun.adapters.http.errors import (
    MAX_SAID,
    MESSAGES_RULES,
    RULES,
    Failed,
    dialect,
    error_answer,
    error_record,
)
from mlxbun.adapters.http.request import Head
from mlxbun.domain.refusal import Code, Refused

CODES = get_args(Code)
CHAT = Head("POST", "/v1/chat/completions", {}, "req_1")
MESSAGES = Head("POST", "/v1/messages", {}, "req_1")
BROKEN: list[Refused | Failed] = [
    *(Refused(code, "because", "field") for code in CODES),
    Failed("method_not_allowed", "because"),
    Failed("timeout", "because"),
    Failed("internal", "because"),
]


@pytest.mark.parametrize("fault", BROKEN, ids=lambda fault: fault.code)
def test_every_refusal_has_a_status_and_the_whole_envelope(fault: Refused | Failed) -> None:
    answer = error_answer(CHAT, fault)
    assert answer.status == RULES[fault.code].status
    assert json.loads(answer.body)["error"] == {
        "message": "because", "type": RULES[fault.code].type, "param": fault.field,
        "code": fault.code,
    }  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN, ids=lambda fault: fault.code)
def test_anthropics_clients_get_their_own_envelope_and_types(fault: Refused | Failed) -> None:
    answer = error_answer(MESSAGES, fault)
    assert answer.status == MESSAGES_RULES[fault.code].status
    if fault.code != "body_too_large":  # documented, and in no type of the SDK
        said = anthropic.types.ErrorResponse.model_validate_json(answer.body)
        assert said.error.message == "because"
    assert json.loads(answer.body) == {
        "type": "error",
        "error": {"type": MESSAGES_RULES[fault.code].type, "message": "because"},
        "request_id": "req_1",
    }


@pytest.mark.parametrize("head", [CHAT, MESSAGES], ids=lambda head: head.path)
def test_what_a_client_sent_is_not_quoted_at_any_length(head: Head) -> None:
    long = "x" * 5_000_000
    answer = error_answer(head, Refused("model_not_found", f"{long!r} is not served; 'a' is", long))
    assert len(answer.body) < 3 * MAX_SAID
    said = json.loads(answer.body)["error"]["message"]
    assert said.startswith("'xxx") and said.endswith(" is not served; 'a' is")


def test_a_thread_is_refused_in_the_words_that_sdks_go_by() -> None:
    answer = error_answer(MESSAGES, Refused("unsupported", "because", "thread"))
    details = json.loads(answer.body)["error"]["details"]
    assert details == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


@pytest.mark.parametrize(
    ("path", "version", "speaks"),
    [
        ("/v1/messages", None, "anthropic"),
        ("/v1/messages/count_tokens", None, "anthropic"),
        ("/v1/messages/batches", None, "anthropic"),
        ("/v1/models/x", "2023-06-01", "anthropic"),
        ("/v1/models/x", None, "openai"),
        ("/v1/chat/completions", None, "openai"),
    ],
)
def test_a_path_or_a_header_tells_who_asks(path: str, version: str | None, speaks: str) -> None:
    headers = {"anthropic-version": version} if version else {}
    rules = dialect(Head("GET", path, headers, "")).rules
    assert (rules is MESSAGES_RULES) == (speaks == "anthropic")


@pytest.mark.parametrize("head", [CHAT, MESSAGES], ids=lambda head: head.path)
@pytest.mark.parametrize("fault", BROKEN, ids=lambda fault: fault.code)
def test_only_what_a_retry_can_mend_asks_for_one(head: Head, fault: Refused | Failed) -> None:
    headers = dict(error_answer(head, fault).headers)
    retried = RULES[fault.code].status in (429, 503)
    assert ("retry-after" in headers) == retried


@pytest.mark.parametrize(("head", "event"), [(CHAT, b""), (MESSAGES, b"event: error\n")])
def test_a_stream_breaks_with_one_record(head: Head, event: bytes) -> None:
    record = error_record(head, Refused("engine_failed", "two\nlines"))
    assert record.startswith(event + b"data: {") and record.endswith(b"}\n\n")
    said = json.loads(record.removeprefix(event).removeprefix(b"data: "))
    assert said["error"]["message"] == "two\nlines"
