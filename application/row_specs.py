"""Row specs: prompts and what is asked of their answers, as rows that the engine can run.

Every protocol's rows are made here, so that all of them cap, refuse and seed alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mlxbun.application.encoding import nothing_ids, room_left
from mlxbun.application.idempotency import Attempt
from mlxbun.application.requests import RequestSpec
from mlxbun.application.service import Model, Service
from mlxbun.domain import sampling_policy
from mlxbun.domain.constraint import Constraint, RowGrammar
from mlxbun.domain.conversation import PlainText, TextReader
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import MAX_STOP_STRINGS, RequestId, TokenId
from mlxbun.domain.sampling_policy import SamplingRequest

MAX_ROWS = 64


class Ask(Struct, frozen=True):
    """How to generate.

    `id` names the request in the journal, `fresh_seed` serves one that names none, and
    `num_bytes` is what the request came in: long ones are encoded off the event loop.  `session`
    is what the client calls the conversation.  `attempt`
    says that the request may be sent again, and shall be answered once.  `constraint` is what
    answers are to look like.
    """

    id: str
    fresh_seed: int
    num_bytes: int = 0
    sampling: SamplingRequest = SamplingRequest()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    session: str | None = None
    attempt: Attempt | None = None
    constraint: Constraint | None = None


class Prepared(Struct, frozen=True):
    """Rows ready to submit: the n rows of the first prompt, those of the second, ...

    `reader` makes what takes a row's text apart, and `shown` are the special tokens that it must
    see.  `text` is the prompt, where there is one and it was rendered.  `warnings` say what of the
    request is not kept to.
    """

    model: Model
    prompts: tuple[tuple[TokenId, ...], ...]
    specs: tuple[RequestSpec, ...]
    stop: tuple[str, ...]
    reader: Callable[[], TextReader] = PlainText
    shown: frozenset[str] = frozenset()
    text: str | None = None
    attempt: Attempt | None = None
    warnings: tuple[str, ...] = ()

    @property
    def num_prompt_tokens(self) -> int:
        """Each prompt counts once, however many rows share it."""
        return sum(map(len, self.prompts))


class KeptTo(Struct, frozen=True):
    """What rows keep to, and what of the request they do not."""

    grammar: RowGrammar | None
    warnings: tuple[str, ...] = ()


def prepared_rows(
    service: Service,
    model: Model,
    prompts: Sequence[Sequence[TokenId]],
    ask: Ask,
    field: str,
    boundaries: tuple[int, ...] = (),
    kept_to: KeptTo | None = None,
) -> Prepared:
    """Return `ask.n` rows for each prompt.  Raises Refused: with `field` for what is too long.

    What `ask` leaves open is the server's default, then the model's.
    """
    card = model.card
    check_rows(len(prompts) * ask.n)
    stop = _checked_stop(ask.stop)
    params = sampling_policy.resolve(
        (ask.sampling, service.server_defaults, card.defaults),
        vocab_size=card.vocab_size,
        fresh_seed=ask.fresh_seed if ask.attempt is None else ask.attempt.seed,
    )
    asked = ask.max_tokens if ask.max_tokens is not None else service.default_max_tokens
    specs: list[RequestSpec] = []
    filled = [tuple(ids) or nothing_ids(card, field) for ids in prompts]
    for prompt_ids in filled:
        room = room_left(card, len(prompt_ids), field)
        for i in range(ask.n):
            specs.append(
                RequestSpec(
                    RequestId(f"{ask.id}-{len(specs)}"),
                    prompt_ids,
                    room if asked is None else min(asked, room),
                    frozenset() if params.ignore_eos else card.stop_ids,
                    replace(params, seed=_seed(params.seed + i)),
                    stop,
                    session=ask.session,
                    boundaries=boundaries,
                    grammar=kept_to.grammar if kept_to is not None else None,
                )
            )
    warnings = kept_to.warnings if kept_to is not None else ()
    return Prepared(
        model, tuple(filled), tuple(specs), stop, attempt=ask.attempt, warnings=warnings
    )


def check_rows(num_rows: int) -> None:
    """Raise Refused if these are more rows than one request may have."""
    if num_rows > MAX_ROWS:
        raise Refused(
            "invalid_value",
            f"the request asks for {num_rows} answers at once (prompts times n); "
            f"at most {MAX_ROWS} are given",
            "n",
        )


def _checked_stop(stop: Sequence[str]) -> tuple[str, ...]:
    if len(stop) > MAX_STOP_STRINGS:
        raise Refused(
            "invalid_value",
            f"stop has {len(stop)} strings; at most {MAX_STOP_STRINGS} are looked for",
            "stop",
        )
    return tuple(string for string in stop if string)


def _seed(seed: int) -> int:
    """Return `seed` within 64 bits: the row after the last seed starts again."""
    return seed if seed < 1 << 64 else seed - (1 << 64)
