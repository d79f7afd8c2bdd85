from __future__ import annotations

import pytest

from field_cases import ENDPOINTS, Endpoint


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_the_table_and_the_type_name_the_same_fields(endpoint: Endpoint) -> None:
    judged = {field.name for field in endpoint.fields if field.stance != "ignored"}
    assert judged == set(endpoint.body.__struct_fields__)
    assert len({field.name for field in endpoint.fields}) == len(endpoint.fields)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_what_is_not_honoured_says_why(endpoint: Endpoint) -> None:
    assert not {field.name for field in endpoint.fields if field.stance != "honoured"} & {
        field.name for field in endpoint.fields if not field.note
    }
