"""What chat and completions requests have in common, taken from the wire."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct

from mlxbun.adapters.http.affinity import session_of
from mlxbun.adapters.http.attempts import attempt_of
from mlxbun.adapters.http.openai_types import (
    CompletionDetails,
    PromptDetails,
    SamplingFields,
    Usage,
)
from mlxbun.adapters.http.request import Request
from mlxbun.application.generation import Generation
from mlxbun.application.row_specs import Ask, Prepared
from mlxbun.domain.constraint import Constraint, constraint_of
from mlxbun.domain.constraint.wire import GUIDED
from mlxbun.domain.conversation import well_formed
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling_policy import SamplingRequest

_SHARED = tuple(
    name for name in SamplingRequest.__struct_fields__ if name in SamplingFields.__struct_fields__
)


_FORMS = (*GUIDED, "structured_outputs")


class Reply(Struct, frozen=True):
    """What every part of one reply repeats.  `created` is in seconds since 1970."""

    id: str
    created: int
    model: str

    def fields(self) -> dict[str, Any]:
        return {"id": self.id, "created": self.created, "model": self.model}


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def ask(
    body: SamplingFields,
    id: str,
    request: Request,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    form: Mapping[str, Any] | None = None,
) -> Ask:
    """Return how to generate.  `logprobs` is the count of alternatives, None for none at all.

    `form` is the format of the answer, by its field's name, where that is not response_format.
    Raises Refused for an answer that is to have two forms.
    """
    said: dict[str, Any] = {name: getattr(body, name) for name in _SHARED}
    stop = body.stop
    return Ask(
        id=id,
        fresh_seed=secrets.randbits(63),
        num_bytes=len(request.body),
        sampling=SamplingRequest(**said, logprobs=logprobs),
        max_tokens=max_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        n=body.n or 1,
        session=session_of(request.head.headers, body.session_id, body.prompt_cache_key),
        attempt=attempt_of(request),
        constraint=constraint(body, form),
    )


def constraint(body: SamplingFields, form: Mapping[str, Any] | None = None) -> Constraint | None:
    """Return what the answer must look like; `form` is as `ask` has it."""
    forms = {"response_format": body.response_format} if form is None else form
    return constraint_of({**forms, **{name: getattr(body, name) for name in _FORMS}})


def usage(prepared: Prepared, generation: Generation) -> Usage:
    prompt, completion = prepared.num_prompt_tokens, generation.num_completion_tokens
    cached = PromptDetails(cached_tokens=generation.num_cached_tokens)
    details = CompletionDetails(
        generation.num_reasoning_tokens, generation.num_replayed_tokens or UNSET
    )
    return Usage(prompt, completion, prompt + completion, cached, details)


def texts_or_ids(said: str | list[str | int | list[int]], field: str) -> list[str | Sequence[int]]:
    """Return the texts, or lists of ids: one, or several.  Raises Refused for mixed kinds."""
    if isinstance(said, str):
        return [well_formed(said)]
    ids = [one for one in said if isinstance(one, int)]
    if len(ids) == len(said):
        return [ids] if ids else []
    texts = [one for one in said if isinstance(one, str)]
    if len(texts) == len(said):
        return [well_formed(text) for text in texts]
    lists = [one for one in said if isinstance(one, list)]
    if len(lists) == len(said):
        return [*lists]
    message = f"{field}: a list holds texts, or token ids, or lists of token ids, of one kind only"
    raise Refused("invalid_value", message, field)
