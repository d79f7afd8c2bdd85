"""Sampling policy: what was asked of a request's tokens, and what that comes to.

Resolved once, request over flag over the model's generation_config.json over default.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from msgspec import Struct

from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import (
    DEFAULT_TEMPERATURE,
    MAX_TOP_LOGPROBS,
    NO_LOGPROBS,
    SamplingParams,
    TokenId,
)


class SamplingRequest(Struct, frozen=True, omit_defaults=True):
    """What somebody asked for, field by field; None is "not said".

    Wire types map onto this, and so do flags and generation_config.json.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repetition_penalty: float | None = None
    repetition_context_size: int | None = None
    presence_penalty: float | None = None
    presence_context_size: int | None = None
    frequency_penalty: float | None = None
    frequency_context_size: int | None = None
    logit_bias: Mapping[str, float] | None = None
    seed: int | None = None
    logprobs: int | None = None
    ignore_eos: bool | None = None


# field: lowest and highest value that is honoured.
RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 5.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 1_000_000),
    "min_p": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 0.5),
    "repetition_penalty": (0.0, 10.0),
    "repetition_context_size": (0, 1_000_000),
    "presence_penalty": (-100.0, 100.0),
    "presence_context_size": (0, 1_000_000),
    "frequency_penalty": (-100.0, 100.0),
    "frequency_context_size": (0, 1_000_000),
    "seed": (-(2**63), 2**64 - 1),
    "logprobs": (NO_LOGPROBS, MAX_TOP_LOGPROBS),
}

_DEFAULTS = SamplingRequest(
    temperature=DEFAULT_TEMPERATURE,
    top_p=1.0,
    top_k=0,
    min_p=0.0,
    xtc_probability=0.0,
    xtc_threshold=0.1,
    repetition_penalty=1.0,
    repetition_context_size=20,
    presence_penalty=0.0,
    presence_context_size=20,
    frequency_penalty=0.0,
    frequency_context_size=20,
    logprobs=NO_LOGPROBS,
    ignore_eos=False,
)


def resolve(
    layers: Iterable[SamplingRequest], *, vocab_size: int, fresh_seed: int
) -> SamplingParams:
    """Return the policy that `layers` ask for, the first that says a field winning.

    Raises Refused with the field's name when a value is out of range.  `fresh_seed` is used
    when no layer names a seed.
    """
    layers = (*layers, _DEFAULTS)
    values: dict[str, object] = {}
    for name in SamplingRequest.__struct_fields__:
        said = next((v for layer in layers if (v := getattr(layer, name)) is not None), None)
        if name in RANGES and said is not None:
            check_range(name, said)
        values[name] = said
    if values["seed"] is None:
        values["seed"] = fresh_seed
    if values["top_k"] == -1 or int(values["top_k"] or 0) >= vocab_size:  # type: ignore[call-overload]
        values["top_k"] = 0
    if values["top_p"] == 0.0:  # mlx-lm's spelling of off
        values["top_p"] = 1.0
    if values["repetition_penalty"] == 0.0:
        values["repetition_penalty"] = 1.0
    values["logit_bias"] = _token_biases(values["logit_bias"], vocab_size)  # type: ignore[arg-type]
    return SamplingParams(**values)  # type: ignore[arg-type]


def check_range(name: str, value: object, field: str | None = None) -> None:
    """Raise Refused unless `value` lies in the range of sampling field `name`."""
    low, high = RANGES[name]
    if not isinstance(value, int | float) or not low <= value <= high:  # NaN fails too
        raise Refused(
            "invalid_value",
            f"{field or name} must be between {low:g} and {high:g}, but is {value!r}",
            field or name,
        )


def _token_biases(
    biases: Mapping[str, float] | None, vocab_size: int
) -> tuple[tuple[TokenId, float], ...]:
    parsed: dict[TokenId, float] = {}
    for key, bias in (biases or {}).items():
        if not key.isascii() or not key.isdigit() or int(key) >= vocab_size:
            raise Refused(
                "invalid_value",
                f"logit_bias: {key!r} is not a token id; the vocabulary has {vocab_size} tokens",
                "logit_bias",
            )
        if not math.isfinite(bias):
            raise Refused("invalid_value", f"logit_bias[{key}] must be finite", "logit_bias")
        parsed[TokenId(int(key))] = float(bias)
    return tuple(parsed.items())
