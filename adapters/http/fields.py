"""What becomes of each field of the OpenAI protocols: honoured, ignored, or refused.

The one list behind the checks of a request and behind docs/api.md.  A field that is in no
list is ignored, as clients add new ones all the time; one that we know and cannot honour is
refused, since its sender counts on it.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from mlxbun.domain.refusal import Refused

Stance = Literal["honoured", "partly", "ignored", "refused"]


class Field(Struct, frozen=True):
    """`harmless` are the values that a field refused or honoured in part may have, besides null."""

    name: str
    stance: Stance
    note: str = ""
    harmless: tuple[Any, ...] = ()


def _honoured(name: str, note: str = "") -> Field:
    return Field(name, "honoured", note)


def _ignored(name: str, note: str) -> Field:
    return Field(name, "ignored", note)


def _refused(name: str, note: str, *harmless: Any) -> Field:
    return Field(name, "refused", note, harmless)


def _partly(name: str, note: str, *harmless: Any) -> Field:
    return Field(name, "partly", note, harmless)


SAMPLING = (
    _honoured("max_tokens", "at least 1; capped to the room that the context window leaves"),
    _honoured("temperature", "0 to 5; 0 takes the likeliest token"),
    _honoured("top_p", "0 to 1; 0 and 1 are off"),
    _honoured("top_k", "0 and -1 are off"),
    _honoured("min_p", "0 to 1"),
    _honoured("xtc_probability", "0 to 1; end and newline tokens are exempt"),
    _honoured("xtc_threshold", "0 to 0.5"),
    _honoured("repetition_penalty", "0 and 1 are off"),
    _honoured("repetition_context_size", "tokens looked back at; 0 is all; default 20"),
    _honoured("presence_penalty"),
    _honoured("presence_context_size", "as repetition_context_size"),
    _honoured("frequency_penalty"),
    _honoured("frequency_context_size", "as repetition_context_size"),
    _honoured("logit_bias", "token ids of the served model to biases"),
    _honoured("seed", "answer i of n draws with seed + i; without one, a fresh seed a request"),
    _honoured("stop", "a string or up to 256; matched on text, never shown"),
    _honoured("ignore_eos", "run on past the end token, up to max_tokens"),
    _honoured("n", "1 to 64; prompts times n at most 64"),
    _honoured("stream"),
    _honoured("stream_options", "include_usage"),
    _honoured("model", "the served id, its last part, or what serve was given; null is that model"),
)

_CONSTRAINTS = (
    _refused("guided_json", "constrained decoding is not there yet"),
    _refused("guided_grammar", "constrained decoding is not there yet"),
    _refused("guided_regex", "constrained decoding is not there yet"),
    _refused("guided_choice", "constrained decoding is not there yet"),
    _refused("structured_outputs", "constrained decoding is not there yet"),
)

_ELSEWHERE = (
    _refused("adapter", "adapters are not there yet", "none", ""),
    _refused("hlg", "the tone-curve sampler is not there yet"),
)

_SESSION = (
    _honoured("session_id", "the session's last turn leaves the prefix cache last; shared by all"),
    _honoured("prompt_cache_key", "as session_id, which wins; then the header x-session-affinity"),
)

_BOOKKEEPING = (
    _ignored("user", "nothing is kept about users"),
    _ignored("metadata", "nothing is stored"),
    _ignored("store", "nothing is stored"),
    _ignored("service_tier", "there is one tier"),
)

CHAT = (
    _honoured("messages", "text only: pictures, sound and video are refused"),
    *SAMPLING,
    _honoured("max_completion_tokens", "as max_tokens; the smaller wins"),
    _honoured("logprobs", "true gives each token's log-probability"),
    _honoured("top_logprobs", "0 to 20 alternatives a token; above 0 it asks for logprobs"),
    _honoured("chat_template_kwargs", "go to the chat template as they are"),
    _honoured("reasoning_effort", "none switches thinking off in the template, others on"),
    _honoured("reasoning", "its effort, as reasoning_effort"),
    _partly(
        "tools",
        "shown to the model; its calls are not parsed yet and come as text, which a Warning "
        "header says",
    ),
    _partly("tool_choice", "none hides the tools; forcing a call is not there yet", "auto", "none"),
    _refused("functions", "use tools", []),
    _refused("function_call", "use tool_choice", "auto", "none"),
    _partly(
        "response_format", "only text: constrained decoding is not there yet", {"type": "text"}
    ),
    *_CONSTRAINTS,
    _refused("modalities", "answers are text", ["text"], []),
    _refused("audio", "answers are text"),
    _refused("web_search_options", "the server does not search"),
    *_ELSEWHERE,
    *_SESSION,
    _ignored("parallel_tool_calls", "tool calls are not parsed yet"),
    _ignored("prediction", "may only change speed"),
    _ignored("verbosity", "a hint that no template takes"),
    _ignored("safety_identifier", "nothing is kept about users"),
    *_BOOKKEEPING,
)

COMPLETIONS = (
    _honoured("prompt", "a text, a list of texts, token ids, or a list of lists of token ids"),
    *SAMPLING,
    _honoured("echo", "the prompt comes first; not together with logprobs or suffix"),
    _honoured("suffix", "for models that fill in the middle; refused by others"),
    _honoured("logprobs", "0 to 20 alternatives a token"),
    _refused("best_of", "ask for n and choose", 1),
    _refused("response_format", "constrained decoding is not there yet", {"type": "text"}),
    *_CONSTRAINTS,
    *_ELSEWHERE,
    *_SESSION,
    *_BOOKKEEPING,
)


def refuse_unsupported(fields: tuple[Field, ...], body: Struct) -> None:
    """Raise Refused, naming it, for the first field that asks for what we do not have.

    Fields that are honoured in part are judged here only by their `harmless` values.
    """
    for field in fields:
        if field.stance not in ("refused", "partly") or field.name == "tools":
            continue
        value = getattr(body, field.name)
        if value is not None and value not in field.harmless:
            message = f"{field.name} is not supported with this value: {field.note}"
            raise Refused("unsupported", message, field.name)
