"""Sampling: what decides a request's tokens, what a draw depends on, and when it ends.

`sampling_policy` resolves what was asked into one immutable `SamplingParams`.  The decider keeps
one session a request: how many tokens it has, and why it finished.  A token's draw depends on
(seed, token index, logits) alone, so neighbours in a batch cannot change it.

Stop strings are matched on text, where text is known: see `stop_strings`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NewType, assert_never

from msgspec import Struct, field

RequestId = NewType("RequestId", str)
TokenId = NewType("TokenId", int)
FinishReason = Literal["stop", "length"]

DEFAULT_TEMPERATURE = 0.7
MAX_STOP_STRINGS = 256
MAX_TOP_LOGPROBS = 20
NO_LOGPROBS = -1


class SamplingParams(Struct, frozen=True):
    """One request's sampling, complete: every value decided, none optional.

    Off is: top_p 1, top_k 0, min_p 0, xtc_probability 0, repetition_penalty 1, the other
    penalties 0.  A context size of 0 is the whole history.  `logprobs` is NO_LOGPROBS, or how
    many alternatives to report beside the chosen token's own.
    """

    temperature: float = DEFAULT_TEMPERATURE
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.0
    repetition_penalty: float = 1.0
    repetition_context_size: int = 20
    presence_penalty: float = 0.0
    presence_context_size: int = 20
    frequency_penalty: float = 0.0
    frequency_context_size: int = 20
    logit_bias: tuple[tuple[TokenId, float], ...] = ()
    seed: int = 0
    logprobs: int = NO_LOGPROBS
    ignore_eos: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """Whether the draw looks at the tokens before it."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def uniform(seed: int, index: int, stream: int = 0) -> float:
    """Return the draw in [0, 1) of token `index` under `seed`; 24 bits, exact in float32.

    `stream` separates several draws for one token.  Source: splitmix64 (Steele, Lea, Flood,
    "Fast splittable pseudorandom number generators", 2014), keyed by seed, then by index.
    """
    mixed = _mix((seed & _MASK) + _GOLDEN)
    return (_mix(mixed + (2 * index + stream + 1) * _GOLDEN) >> 40) * 2.0**-24


def _mix(z: int) -> int:
    z &= _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class OpenSession(Struct, frozen=True):
    """A request will be sampled: at most `max_tokens` tokens, ended by any of `stop_ids`.

    `num_tokens` of them were drawn by an earlier attempt.
    """

    request_id: RequestId
    max_tokens: int
    stop_ids: frozenset[TokenId]
    num_tokens: int = 0


class CommitTokens(Struct, frozen=True):
    """Step `step` drew `token_ids[i]` for `request_ids[i]`.

    Those in `complete` keep to a grammar that lets nothing follow.
    """

    step: int
    request_ids: tuple[RequestId, ...]
    token_ids: tuple[TokenId, ...]
    complete: tuple[RequestId, ...] = ()


class CloseSession(Struct, frozen=True):
    """The request ended elsewhere: cancelled, failed, or by a stop string."""

    request_id: RequestId


Command = OpenSession | CommitTokens | CloseSession


class SessionOpened(Struct, frozen=True, gc=False, tag="session_opened"):
    request_id: RequestId
    max_tokens: int
    stop_ids: tuple[TokenId, ...]
    num_tokens: int = 0


class TokensCommitted(Struct, frozen=True, gc=False, tag="tokens_committed"):
    """One event a step for all rows.  A row whose session was over is not in it."""

    step: int
    request_ids: tuple[RequestId, ...]
    token_ids: tuple[TokenId, ...]


class SamplingFinished(Struct, frozen=True, gc=False, tag="sampling_finished"):
    request_id: RequestId
    reason: FinishReason


class SessionClosed(Struct, frozen=True, gc=False, tag="session_closed"):
    request_id: RequestId


Event = SessionOpened | TokensCommitted | SamplingFinished | SessionClosed


class Session(Struct):
    max_tokens: int
    stop_ids: frozenset[TokenId]
    num_tokens: int = 0


class Sampling(Struct):
    """The sessions that are not over.  Only `evolve` writes it."""

    sessions: dict[RequestId, Session] = field(default_factory=dict[RequestId, Session])


def decide(state: Sampling, command: Command) -> list[Event]:
    """Return the events that make `command` so; an empty list if it is so already."""
    match command:
        case OpenSession(request_id=request_id, max_tokens=max_tokens, stop_ids=stop_ids):
            if request_id in state.sessions:
                return []
            ends = tuple(sorted(stop_ids))
            return [SessionOpened(request_id, max_tokens, ends, command.num_tokens)]
        case CommitTokens(step=step, request_ids=request_ids, token_ids=token_ids):
            sessions = state.sessions
            drawn = [(r, t) for r, t in zip(request_ids, token_ids, strict=True) if r in sessions]
            if not drawn:
                return []
            events: list[Event] = [
                TokensCommitted(step, tuple(r for r, _ in drawn), tuple(t for _, t in drawn))
            ]
            for request_id, token in drawn:
                session = sessions[request_id]
                # An end that is also the last token allowed reports stop, as mlx-lm does.
                if token in session.stop_ids or request_id in command.complete:
                    events.append(SamplingFinished(request_id, "stop"))
                elif session.num_tokens + 1 >= session.max_tokens:
                    events.append(SamplingFinished(request_id, "length"))
            return events
        case CloseSession(request_id=request_id):
            return [SessionClosed(request_id)] if request_id in state.sessions else []
        case _:
            assert_never(command)


def evolve(state: Sampling, event: Event) -> Sampling:
    """Take ownership of `state`, apply `event`, hand it back.  Never fails, never decides."""
    match event:
        case SessionOpened(request_id=request_id, max_tokens=max_tokens, stop_ids=stop_ids):
            ends = frozenset(stop_ids)
            state.sessions[request_id] = Session(max_tokens, ends, event.num_tokens)
        case TokensCommitted(request_ids=request_ids):
            for request_id in request_ids:
                state.sessions[request_id].num_tokens += 1
        case SamplingFinished(request_id=request_id) | SessionClosed(request_id=request_id):
            del state.sessions[request_id]
        case _:
            assert_never(event)
    return state


def fold(state: Sampling, events: Iterable[Event]) -> Sampling:
    for event in events:
        state = evolve(state, event)
    return state
