"""What was told of tokens is packed and comes out as it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlxbun.domain.packed_logprobs import LogprobLog, PackedLogprobs, joined
from mlxbun.domain.sampling import MAX_TOP_LOGPROBS, TokenId
from mlxbun.domain.steps import TokenLogprobs

VALUES = st.floats(max_value=0, width=32, allow_nan=False)  # what a masked token has is -inf
IDS = st.integers(0, 2**32 - 1).map(TokenId)
TOLD = st.builds(
    TokenLogprobs,
    VALUES,
    st.lists(st.tuples(IDS, VALUES), max_size=MAX_TOP_LOGPROBS).map(tuple),
)


def packed(told: list[TokenLogprobs], before: PackedLogprobs | None = None) -> PackedLogprobs:
    log = LogprobLog(before)
    for one in told:
        log.append(one)
    return log.packed()


@given(st.lists(TOLD, max_size=12), st.data())
def test_what_is_packed_in_pieces_is_what_is_packed_at_once(
    told: list[TokenLogprobs], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(told)))
    whole = packed(told)
    assert list(whole.unpacked()) == told and len(whole) == len(told)
    assert list(whole.since(at).unpacked()) == told[at:]
    assert packed(told[at:], packed(told[:at])) == whole
    assert joined([packed(told[:at]), whole.since(at)]) == whole


@given(st.lists(TOLD))
def test_a_token_takes_five_bytes_and_eight_an_alternative(told: list[TokenLogprobs]) -> None:
    assert packed(told).num_bytes == sum(5 + 8 * len(one.top) for one in told)
