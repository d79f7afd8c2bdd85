"""Sampling: resolution, draws, and the decider of sessions."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import (
    CloseSession,
    Command,
    CommitTokens,
    Event,
    OpenSession,
    RequestId,
    Sampling,
    SamplingFinished,
    SessionClosed,
    SessionOpened,
    TokenId,
    TokensCommitted,
    decide,
    evolve,
    fold,
    uniform,
)
from mlxbun.domain.sampling_policy import SamplingRequest, resolve

A, B = RequestId("A"), RequestId("B")
EOS = TokenId(2)


def given_(*events: Event) -> Sampling:
    return fold(Sampling(), events)


def opened(request_id: RequestId, max_tokens: int = 4) -> SessionOpened:
    return SessionOpened(request_id, max_tokens, (EOS,))


def test_the_request_wins_over_the_flag_and_the_flag_over_the_model() -> None:
    request = SamplingRequest(temperature=0.1)
    flags = SamplingRequest(temperature=0.2, top_k=5)
    model = SamplingRequest(temperature=0.3, top_k=6, top_p=0.9)
    params = resolve((request, flags, model), vocab_size=100, fresh_seed=7)
    assert (params.temperature, params.top_k, params.top_p) == (0.1, 5, 0.9)
    assert params.seed == 7
    assert params.repetition_context_size == 20


def test_nothing_said_means_the_documented_defaults() -> None:
    params = resolve((), vocab_size=100, fresh_seed=0)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.7, 1.0, 0, 0.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", math.nan),
        ("temperature", -0.1),
        ("temperature", math.inf),
        ("top_p", 1.5),
        ("top_k", -2),
        ("min_p", 2.0),
        ("xtc_threshold", 0.6),
        ("repetition_penalty", -1.0),
        ("presence_context_size", -1),
        ("frequency_penalty", math.nan),
        ("seed", 2**64),
        ("logprobs", 21),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(Refused) as refused:
        resolve((SamplingRequest(**{field: value}),), vocab_size=100, fresh_seed=0)  # type: ignore[arg-type]
    assert refused.value.field == field
    assert field in refused.value.message


@pytest.mark.parametrize("bias", [{"100": 1.0}, {"-1": 1.0}, {"x": 1.0}, {"1.5": 1.0}, {"²": 1.0}])
def test_a_bias_for_no_token_is_refused(bias: dict[str, float]) -> None:
    with pytest.raises(Refused, match="100 tokens"):
        resolve((SamplingRequest(logit_bias=bias),), vocab_size=100, fresh_seed=0)


def test_a_bias_that_is_not_finite_is_refused() -> None:
    with pytest.raises(Refused, match="finite"):
        resolve((SamplingRequest(logit_bias={"1": math.inf}),), vocab_size=9, fresh_seed=0)


@pytest.mark.parametrize("said", [SamplingRequest(top_k=-1), SamplingRequest(top_k=100)])
def test_a_top_k_of_the_whole_vocabulary_is_off(said: SamplingRequest) -> None:
    assert resolve((said,), vocab_size=100, fresh_seed=0).top_k == 0


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**20), st.integers(0, 1))
def test_draws_lie_in_the_unit_interval_and_repeat(seed: int, index: int, stream: int) -> None:
    drawn = uniform(seed, index, stream)
    assert 0.0 <= drawn < 1.0
    assert drawn == uniform(seed, index, stream)
    assert drawn * 2**24 == int(drawn * 2**24), "exact in float32"


def test_draws_are_uniform_over_tokens_over_seeds_and_across_streams() -> None:
    n, cells = 20_000, 50
    for draws in (
        [uniform(1, i) for i in range(n)],
        [uniform(i, 0) for i in range(n)],
        [uniform(1, i, 1) for i in range(n)],
    ):
        counts = [0] * cells
        for u in draws:
            counts[int(u * cells)] += 1
        chi2 = sum((c - n / cells) ** 2 / (n / cells) for c in counts)
        assert chi2 < 102.0, "the 1e-5 quantile of chi squared with 49 degrees of freedom"


def test_an_end_token_stops_and_counts() -> None:
    state = given_(opened(A))
    assert decide(state, CommitTokens(1, (A,), (EOS,))) == [
        TokensCommitted(1, (A,), (EOS,)),
        SamplingFinished(A, "stop"),
    ]


def test_the_last_allowed_token_reports_length_unless_it_is_an_end_token() -> None:
    state = given_(opened(A, 1), opened(B, 1))
    assert decide(state, CommitTokens(1, (A, B), (TokenId(9), EOS)))[1:] == [
        SamplingFinished(A, "length"),
        SamplingFinished(B, "stop"),
    ]


def test_a_token_of_a_session_that_is_over_is_nobodys() -> None:
    state = given_(opened(A), SessionClosed(A), opened(B))
    assert decide(state, CommitTokens(3, (A, B), (TokenId(5), TokenId(6)))) == [
        TokensCommitted(3, (B,), (TokenId(6),))
    ]
    assert decide(state, CommitTokens(3, (A,), (TokenId(5),))) == []


ids = st.sampled_from([RequestId(f"r{i}") for i in range(4)])
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(OpenSession, ids, st.integers(1, 4), st.frozensets(st.integers(0, 3).map(TokenId))),
    st.builds(CloseSession, ids),
    st.lists(
        st.tuples(ids, st.integers(0, 3).map(TokenId)), max_size=4, unique_by=lambda x: x[0]
    ).map(lambda rows: CommitTokens(1, tuple(r for r, _ in rows), tuple(t for _, t in rows))),
)


@given(st.lists(commands, max_size=40))
def test_the_log_alone_rebuilds_the_state(script: list[Command]) -> None:
    live, log = Sampling(), list[Event]()
    for command in script:
        before = repr(live)
        events = decide(live, command)
        assert repr(live) == before, "decide must not write"
        for event in events:
            live = evolve(live, event)
        log += events
        for session in live.sessions.values():
            assert session.num_tokens < session.max_tokens
    stored = msgspec.msgpack.encode(log)
    assert fold(Sampling(), msgspec.msgpack.decode(stored, type=list[Event])) == live
