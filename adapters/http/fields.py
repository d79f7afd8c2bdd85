"""What becomes of each field of every protocol: honoured, ignored, or refused.

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
    """`harmless` are the values that a field that is refused may have, besides null.

    One that is honoured partly is judged by its handler: its values are objects, or lists of them.
    """

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


def _partly(name: str, note: str) -> Field:
    return Field(name, "partly", note)


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
    _honoured("seed", "without one, a fresh seed a request"),
    _honoured("stop", "a string or up to 256; matched on text, never shown"),
    _honoured("ignore_eos", "run on past the end token, up to max_tokens"),
    _honoured("n", "1 to 64; prompts times n at most 64; answer i draws with seed + i"),
    _honoured("stream"),
    _honoured("stream_options", "include_usage: a last record with the usage, which else has none"),
    _honoured("model", "the served id, its last part, or what serve was given; null is that model"),
)

_CONSTRAINTS = (
    _honoured("response_format", "text, json_object, json_schema: see structured output"),
    _honoured("guided_json", "a JSON schema"),
    _honoured("guided_grammar", "EBNF, whose first rule is root"),
    _honoured("guided_regex", "a regular expression that the whole answer matches"),
    _honoured("guided_choice", "a list of texts, one of which is the answer"),
    _honoured("structured_outputs", "one of json, regex, grammar, choice; or a JSON schema"),
)

_ELSEWHERE = (
    _refused("adapter", "adapters are not there yet", "none", ""),
    _refused("hlg", "the tone-curve sampler is not there yet", {"enabled": False}),
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
    _honoured("messages", "text only: a picture in the question is refused, else it leaves a note"),
    *SAMPLING,
    _honoured("max_completion_tokens", "as max_tokens; the smaller wins"),
    _honoured("logprobs", "true gives each token's log-probability"),
    _honoured("top_logprobs", "0 to 20 alternatives a token; above 0 it asks for logprobs"),
    _honoured("chat_template_kwargs", "go to the chat template as they are"),
    _honoured("reasoning_effort", "none switches thinking off in the template, others on"),
    _honoured("reasoning", "its effort, as reasoning_effort, which wins"),
    _partly("tools", "functions are offered to the model; a tool of another type is refused"),
    _honoured(
        "tool_choice",
        "none hides the tools, allowed_tools all others; required or a function's name forces a "
        "call",
    ),
    _honoured("parallel_tool_calls", "false ends an answer after its first call"),
    _refused("functions", "use tools", []),
    _refused("function_call", "use tool_choice", "auto", "none"),
    *_CONSTRAINTS,
    _refused("modalities", "answers are text", ["text"], []),
    _refused("audio", "answers are text"),
    _refused("web_search_options", "the server does not search"),
    *_ELSEWHERE,
    *_SESSION,
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
    _refused("best_of", "ask for n and choose; as many as n is nothing to choose from", 1),
    *_CONSTRAINTS,
    *_ELSEWHERE,
    *_SESSION,
    *_BOOKKEEPING,
)


EMBEDDINGS = (
    _honoured(
        "input",
        "a text, a list of texts, token ids of this model, or a list of lists of them; up to 2,048",
    ),
    _honoured("model", "the embedding model, named as in chat; null is whichever embeds here"),
    _honoured(
        "encoding_format", "float, or base64 of float32, the lowest byte first; float by default"
    ),
    _honoured(
        "dimensions", "the first so many, scaled to length 1; at most as many as the model has"
    ),
    _honoured("instruction", "what the texts search for; of models that were trained with one"),
    _refused("truncate_prompt_tokens", "nothing is left out of a text: one too long is refused"),
    _ignored("user", "nothing is kept about users"),
)


_DRAWING = tuple(
    field
    for field in SAMPLING
    if field.name not in ("max_tokens", "stop", "n", "stream", "stream_options", "model")
)

_PROMPT = (
    _honoured("messages", "user, assistant and, in any place, system; text only, as said above"),
    _honoured(
        "system", "a string or a list of texts; a line of Claude Code's accounts is left out"
    ),
    _honoured("model", "as in chat; every claude-* is the served model, too"),
    _partly(
        "tools",
        "those with an input_schema are shown to the model, and so are bash, text_editor and "
        "memory, which clients run; of other types a Warning header says that they are left out",
    ),
    _honoured(
        "tool_choice",
        "none hides the tools; any and tool force a call. disable_parallel_tool_use ends an answer "
        "after its first call",
    ),
    _partly(
        "thinking",
        "switches thinking in the chat template; absent is disabled, unless serve was told "
        "otherwise, and so is between_tools; budget_tokens is not kept to. Warning headers say so",
    ),
    _honoured(
        "output_config", "effort, as reasoning_effort; format, json_schema: see structured output"
    ),
    _honoured("chat_template_kwargs", "go to the chat template as they are"),
    _honoured("output_format", "as output_config.format"),
    _refused("mcp_servers", "the server calls nobody; give their tools as tools", []),
    _refused("thread", "nothing is stored: send the whole history"),
)

_ACCOUNTS = (
    _ignored("cache_control", "the cache finds a prompt by its tokens, marked or not"),
    _ignored("context_management", "the whole history is shown to the model, nothing is cleared"),
    _ignored("betas", "as the anthropic-beta header: what is there needs no key to it"),
    _ignored("speed", "there is one"),
    _ignored("user_profile_id", "nothing is kept about users"),
    _ignored("workspace_id", "nothing is kept about users"),
)

COUNT_TOKENS = (*_PROMPT, *_ACCOUNTS)

MESSAGES = (
    *_PROMPT,
    _honoured(
        "max_tokens",
        "capped to the room that the context window leaves; with 0 the prompt is read into the "
        "cache, and nothing is answered",
    ),
    _honoured("stop_sequences", "up to 256; matched on text, never shown"),
    _honoured("stream"),
    *_DRAWING,
    _honoured("diagnostics", "previous_message_id, of one of the last requests"),
    _refused("container", "nothing is run here"),
    *_ELSEWHERE,
    *_SESSION,
    _honoured("metadata", "a hash of user_id is the session, if no other is named"),
    *_ACCOUNTS,
    _ignored("service_tier", "there is one tier"),
    _ignored("inference_geo", "it runs where the server runs"),
    _ignored("compaction", "the whole history is shown to the model"),
    _ignored("fallbacks", "there is one model"),
    _ignored("fallback_credit_token", "nothing is billed"),
    _ignored("billing_policy", "nothing is billed"),
)


RESPONSES = (
    _honoured("input", "a string or a list of items; text only, as messages of chat are"),
    _honoured(
        "instructions", "come first, as system; without any, those of previous_response_id hold"
    ),
    _honoured("previous_response_id", "its items come before the input, thoughts included"),
    _honoured(
        "conversation",
        "an id, or an object with one: its items come before the input; input and output are "
        "added to it when the response is complete. Not beside previous_response_id",
    ),
    _honoured("max_output_tokens", "as max_tokens; the smaller wins"),
    *(f for f in SAMPLING if f.name not in ("n", "stream_options")),
    _refused("n", "there is one output", 1),
    _partly(
        "tools",
        "functions, those of namespaces, custom ones, as functions of one text, and local_shell, "
        "shell and apply_patch, which clients run; of others, which OpenAI runs, a Warning header "
        "says that they are left out",
    ),
    _honoured(
        "tool_choice",
        "none hides the tools, allowed_tools all others; required, a name, and the type of a tool "
        "that clients run force a call",
    ),
    _honoured("parallel_tool_calls", "false ends an answer after its first call"),
    _honoured(
        "text",
        "format: text, json_object or json_schema: see structured output; verbosity is given back, "
        "no template takes it",
    ),
    _honoured(
        "reasoning",
        "effort, as in chat, max is xhigh; whatever summary asks for, it has the whole thoughts",
    ),
    _honoured("chat_template_kwargs", "go to the chat template as they are"),
    _honoured("top_logprobs", "0 to 20 alternatives a token; above 0 it asks for logprobs"),
    _honoured(
        "include",
        "reasoning.encrypted_content (the thoughts again, not secret, in a form that is given "
        "back) and message.output_text.logprobs; the others are of tools that are not here",
    ),
    _honoured("store", "false keeps nothing; else it is kept in memory, for an hour at most"),
    _honoured("generate", "false: the prompt is read into the cache, and nothing is answered"),
    _partly(
        "prompt_cache_options",
        "prewarm, as generate: false; the cache finds a prompt by its tokens, marked or not, and "
        "keeps it as long as there is room",
    ),
    _honoured("background", "goes on without its client, who reads it by its id; not unkept"),
    _honoured("metadata", "texts by name, given back"),
    *_CONSTRAINTS[1:],
    _refused("response_format", "use text.format", {"type": "text"}),
    _refused("prompt", "there are no prompts by id; send the text"),
    *_ELSEWHERE,
    *_SESSION,
    _ignored("stream_options", "usage comes with the last event, and nothing is obfuscated"),
    _ignored("max_tool_calls", "counts tools that the server runs, and it runs none"),
    _ignored("truncation", "a prompt that is too long is refused, nothing is left out of it"),
    _ignored("context_management", "the whole history is shown to the model, nothing is cleared"),
    _ignored("prompt_cache_retention", "what is used stays, on the SSD too"),
    _ignored("background_options", "it runs as soon as it can"),
    _ignored("image", "pictures are not read"),
    _ignored("access_programs", "there are none"),
    _ignored("moderation", "nothing is moderated"),
    _ignored("service_tier", "there is one tier"),
    _ignored("safety_identifier", "nothing is kept about users"),
    _ignored("user", "nothing is kept about users"),
)


def refuse_unsupported(fields: tuple[Field, ...], body: Struct) -> None:
    """Raise Refused, naming it, for the first field that asks for what we do not have."""
    for field in fields:
        if field.stance != "refused":
            continue
        value = getattr(body, field.name)
        if value is not None and value not in field.harmless:
            message = f"{field.name} is not supported with this value: {field.note}"
            raise Refused("unsupported", message, field.name)
