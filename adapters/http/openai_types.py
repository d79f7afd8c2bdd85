"""The wire types of OpenAI's chat and completions protocols.

None is "absent": a null and a missing field mean the same.  A field without a type of its own
is one that is ignored or refused; `fields` says which.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]

# Content as every protocol has it.  What a part's type must have is checked where it is read.
CONTENT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "null"},
        {
            "type": "array",
            "items": {
                "anyOf": [
                    {"type": "string"},
                    {"type": "object", "properties": {"type": {"type": ["string", "null"]}}},
                ]
            },
        },
    ]
}
_MESSAGE_SCHEMA = {
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": CONTENT_SCHEMA,
        "reasoning_content": {"type": ["string", "null"]},
        "tool_calls": {"type": ["array", "null"], "items": {"type": "object"}},
        "tool_call_id": {"type": ["string", "null"]},
        "name": {"type": ["string", "null"]},
    },
}

Message = Annotated[dict[str, Any], Meta(extra_json_schema=_MESSAGE_SCHEMA)]
Messages = Annotated[list[Message], Meta(extra_json_schema={"minItems": 1})]
Tokens = Annotated[int, Meta(ge=1)]


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None


class Reasoning(Struct, frozen=True):
    effort: Effort | None = None


class SamplingFields(Struct, frozen=True, kw_only=True):
    """What chat, completions and Responses say in the same words."""

    model: str | None = None
    max_tokens: Tokens | None = None
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
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    n: Annotated[int, Meta(ge=1, le=64)] | None = None
    stream: bool | None = None
    session_id: str | int | None = None
    prompt_cache_key: str | int | None = None
    response_format: Any = None
    guided_json: Any = None
    guided_grammar: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    structured_outputs: Any = None
    adapter: Any = None
    hlg: Any = None


class StreamedFields(SamplingFields, frozen=True, kw_only=True):
    """What they also say alike, and Responses does not."""

    stream_options: StreamOptions | None = None

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(StreamedFields, frozen=True, kw_only=True):
    messages: Messages
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Effort | None = None
    reasoning: Reasoning | None = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None


class CompletionRequest(StreamedFields, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]]
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: int | None = None


class PromptDetails(Struct, frozen=True):
    cached_tokens: int = 0


class CompletionDetails(Struct, frozen=True):
    """`replayed_tokens` are those that an earlier attempt drew; absent where there are none."""

    reasoning_tokens: int = 0
    replayed_tokens: int | UnsetType = UNSET


class Usage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails = PromptDetails()
    completion_tokens_details: CompletionDetails = CompletionDetails()


class TopLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: tuple[int, ...]


class ChatLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: tuple[int, ...]
    top_logprobs: tuple[TopLogprob, ...]


class ChatLogprobs(Struct, frozen=True):
    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(Struct, frozen=True):
    """Four lists, an entry a token; offsets are in characters of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class CalledFunction(Struct, frozen=True):
    """`arguments` is the text of a JSON object."""

    name: str
    arguments: str


class ToolCall(Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(Struct, frozen=True, kw_only=True):
    """`content` is null where there are calls alone."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class FunctionDelta(Struct, frozen=True, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(Struct, frozen=True, omit_defaults=True):
    """A part of call `index`; id, type and name come once, with empty arguments."""

    index: int
    function: FunctionDelta
    id: str | None = None
    type: Literal["function"] | None = None


class Delta(Struct, frozen=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(Struct, frozen=True):
    index: int
    delta: Delta
    logprobs: Any = None
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None


class ChatChunk(Struct, frozen=True, kw_only=True):
    """`usage` is absent unless it was asked for; then null on all chunks but the last."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None | UnsetType = UNSET


class TextChoice(Struct, frozen=True):
    """A choice of a completion; in a stream, what is new of it."""

    index: int
    text: str
    logprobs: Any = None
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None


class TextCompletion(Struct, frozen=True, kw_only=True):
    """A completion, or one chunk of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None | UnsetType = UNSET
