from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from mlxbun.adapters.http import sse


@given(st.text())
def test_a_filled_template_is_the_record_encoded_whole(text: str) -> None:
    template = sse.Template({"a": [{"content": sse.Template.HOLE}], "b": None})
    assert template.fill(text) == sse.record({"a": [{"content": text}], "b": None})


@given(st.text())
def test_no_text_breaks_a_records_frame(text: str) -> None:
    record = sse.record(text)
    assert record.startswith(b"data: ") and record.endswith(b"\n\n")
    assert b"\n" not in record[:-2] and b"\r" not in record
    assert json.loads(record.removeprefix(b"data: ")) == text
