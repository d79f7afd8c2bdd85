"""The wire types of Anthropic's Messages protocol.

None is "absent": a null and a missing field mean the same.  A field without a type of its own
is one that is refused, or read where the conversation is; `fields` says what becomes of each.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from mlxbun.adapters.http.openai_types import CONTENT_SCHEMA
from mlxbun.application.outlines import Diagnostics

_MESSAGE_SCHEMA = {
    "required": ["role"],
    "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": CONTENT_SCHEMA},
}
_TOOL_SCHEMA = {
    "anyOf": [{"required": ["name", "input_schema"]}, {"required": ["type"]}],
    "properties": {"type": {"type": ["string", "null"]}},
}

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class Thinking(Struct, frozen=True):
    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputConfig(Struct, frozen=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Any = None


class ToolChoice(Struct, frozen=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(Struct, frozen=True):
    user_id: str | None = None


class PreviousMessage(Struct, frozen=True):
    previous_message_id: str | None = None


class CountRequest(Struct, frozen=True, kw_only=True):
    """What a prompt is made of."""

    model: str | None = None
    messages: Annotated[
        list[Annotated[dict[str, Any], Meta(extra_json_schema=_MESSAGE_SCHEMA)]],
        Meta(extra_json_schema={"minItems": 1}),
    ]
    system: Annotated[Any, Meta(extra_json_schema=CONTENT_SCHEMA)] = None
    tools: list[Annotated[dict[str, Any], Meta(extra_json_schema=_TOOL_SCHEMA)]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    output_format: Any = None
    mcp_servers: Any = None
    thread: Any = None


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=0)]
    stop_sequences: list[str] | None = None
    stream: bool | None = None
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
    ignore_eos: bool | None = None
    metadata: Metadata | None = None
    session_id: str | int | None = None
    prompt_cache_key: str | int | None = None
    diagnostics: PreviousMessage | None = None
    container: Any = None
    adapter: Any = None
    hlg: Any = None


class TokenCount(Struct, frozen=True):
    input_tokens: int


class ThinkingBlock(Struct, frozen=True, tag="thinking"):
    thinking: str
    signature: str


class TextBlock(Struct, frozen=True, tag="text"):
    text: str


class ToolUseBlock(Struct, frozen=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


ContentBlock = ThinkingBlock | TextBlock | ToolUseBlock


class OutputTokens(Struct, frozen=True):
    """`replayed_tokens` are those that an earlier attempt drew; absent where there are none."""

    thinking_tokens: int
    replayed_tokens: int | UnsetType = UNSET


class MessagesUsage(Struct, frozen=True):
    """The three counts of input add up to the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokens


class Message(Struct, frozen=True, kw_only=True):
    """An answer; in a stream's first event it is empty, and its `stop_reason` null."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessagesUsage
    diagnostics: Diagnostics | None | UnsetType = UNSET


class MessageStart(Struct, frozen=True, tag="message_start"):
    message: Message


class Ping(Struct, frozen=True, tag="ping"):
    pass


class BlockStart(Struct, frozen=True, tag="content_block_start"):
    index: int
    content_block: ContentBlock


class TextDelta(Struct, frozen=True, tag="text_delta"):
    text: str


class ThinkingDelta(Struct, frozen=True, tag="thinking_delta"):
    thinking: str


class SignatureDelta(Struct, frozen=True, tag="signature_delta"):
    signature: str


class InputDelta(Struct, frozen=True, tag="input_json_delta"):
    partial_json: str


class BlockDelta(Struct, frozen=True, tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(Struct, frozen=True, tag="content_block_stop"):
    index: int


class Stopped(Struct, frozen=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Struct, frozen=True, tag="message_delta"):
    delta: Stopped
    usage: MessagesUsage


class MessageStop(Struct, frozen=True, tag="message_stop"):
    pass


MessageEvent = (
    MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
)
