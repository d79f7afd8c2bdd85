from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from mlxbun.adapters.http.anthropic_types import CountRequest, MessagesRequest
from mlxbun.adapters.http.fields import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    Field,
    refuse_unsupported,
)
from mlxbun.adapters.http.openai_embeddings import EmbeddingsRequest
from mlxbun.adapters.http.openai_types import ChatRequest, CompletionRequest
from mlxbun.adapters.http.responses_types import ResponsesRequest
from mlxbun.domain.refusal import Refused

TABLES: list[tuple[tuple[Field, ...], type[Struct], dict[str, Any]]] = [
    (CHAT, ChatRequest, {"messages": [{}]}),
    (COMPLETIONS, CompletionRequest, {"prompt": ""}),
    (MESSAGES, MessagesRequest, {"messages": [{}], "max_tokens": 1}),
    (COUNT_TOKENS, CountRequest, {"messages": [{}]}),
    (EMBEDDINGS, EmbeddingsRequest, {"input": "a"}),
    (RESPONSES, ResponsesRequest, {}),
]
REFUSED = [
    (table, kind, needed, field)
    for table, kind, needed in TABLES
    for field in table
    if field.stance in ("refused", "partly") and not field.inside
]


@pytest.mark.parametrize(("table", "kind", "needed"), TABLES)
def test_the_table_and_the_type_name_the_same_fields(
    table: tuple[Field, ...], kind: type[Struct], needed: dict[str, Any]
) -> None:
    judged = {field.name for field in table if field.stance != "ignored"}
    assert judged == set(kind.__struct_fields__)
    assert len({field.name for field in table}) == len(table)


@pytest.mark.parametrize(("table", "kind", "needed", "field"), REFUSED)
def test_a_refused_field_is_refused_by_name_and_its_harmless_values_are_not(
    table: tuple[Field, ...], kind: type[Struct], needed: dict[str, Any], field: Field
) -> None:
    for value in (None, *field.harmless):
        refuse_unsupported(table, kind(**needed, **{field.name: value}))
    with pytest.raises(Refused) as caught:
        refuse_unsupported(table, kind(**needed, **{field.name: {"type": "json_schema"}}))
    assert (caught.value.code, caught.value.field) == ("unsupported", field.name)
