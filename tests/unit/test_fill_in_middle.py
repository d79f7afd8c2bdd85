from __future__ import annotations

import pytest

from mlxbun.adapters.tokenizer.fill_in_middle import FAMILIES, Markers, fill_in_middle
from mlxbun.domain.sampling import TokenId

BEFORE, AFTER = [TokenId(1), TokenId(2)], [TokenId(3)]


def vocabulary(*tokens: str | None) -> dict[str, TokenId]:
    return {token: TokenId(100 + i) for i, token in enumerate(tokens) if token is not None}


@pytest.mark.parametrize("markers", FAMILIES)
def test_every_family_is_known_by_its_tokens(markers: Markers) -> None:
    ids = vocabulary(markers.prefix, markers.suffix, markers.middle)
    family = fill_in_middle(ids.get)
    assert family is not None
    prefix, suffix = [TokenId(100), *BEFORE], [TokenId(101), *AFTER]
    halves = [*prefix, *suffix] if markers.first == "prefix" else [*suffix, *prefix]
    middle = [] if markers.middle is None else [TokenId(102)]
    assert family.prompt(BEFORE, AFTER) == [*halves, *middle]


@pytest.mark.parametrize("markers", FAMILIES)
def test_part_of_a_family_is_none(markers: Markers) -> None:
    tokens = (markers.prefix, markers.suffix, markers.middle)
    for missing in tokens:
        if missing is not None:
            ids = vocabulary(*(token for token in tokens if token != missing))
            assert fill_in_middle(ids.get) is None
