"""The wire types of OpenAI's Responses protocol: what is asked, and the response object.

None is "absent", as in `openai_types`.  What the model is asked with (items, tools, formats) is
read where it is understood, so here it is any JSON.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from mlxbun.adapters.http.openai_types import ChatLogprob, Effort, SamplingFields, Tokens

Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ReasoningAsked(Struct, frozen=True):
    effort: Effort | Literal["max"] | None = None
    summary: str | None = None


class TextAsked(Struct, frozen=True):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ConversationNamed(Struct, frozen=True):
    id: str


class CacheOptions(Struct, frozen=True):
    prewarm: bool | None = None


class ResponsesRequest(SamplingFields, frozen=True, kw_only=True):
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: Tokens | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: TextAsked | None = None
    reasoning: ReasoningAsked | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: list[str] | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    background: bool | None = None
    generate: bool | None = None
    prompt_cache_options: CacheOptions | None = None
    conversation: str | ConversationNamed | None = None
    prompt: Any = None


class OutputText(Struct, frozen=True, tag="output_text"):
    text: str
    annotations: tuple[()] = ()
    logprobs: list[ChatLogprob] = []


class SummaryText(Struct, frozen=True, tag="summary_text"):
    text: str


class MessageItem(Struct, frozen=True, kw_only=True, tag="message"):
    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningItem(Struct, frozen=True, kw_only=True, tag="reasoning"):
    """`summary` has the thoughts themselves; `encrypted_content` too, where it was asked for."""

    id: str
    summary: list[SummaryText]
    content: tuple[()] = ()
    encrypted_content: str | None = None


class FunctionCallItem(Struct, frozen=True, kw_only=True, tag="function_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class CustomCallItem(Struct, frozen=True, kw_only=True, tag="custom_tool_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


class ClientCall(Struct, frozen=True, kw_only=True):
    """A call of a tool that a request only names."""

    id: str
    status: ItemStatus
    call_id: str


class LocalShellCallItem(ClientCall, frozen=True, kw_only=True, tag="local_shell_call"):
    action: dict[str, Any]


class ShellCallItem(ClientCall, frozen=True, kw_only=True, tag="shell_call"):
    action: dict[str, Any]


class ApplyPatchCallItem(ClientCall, frozen=True, kw_only=True, tag="apply_patch_call"):
    operation: dict[str, Any]


ClientCallItem = LocalShellCallItem | ShellCallItem | ApplyPatchCallItem
OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem | ClientCallItem


class InputDetails(Struct, frozen=True):
    """Nothing is paid for, so `cache_write_tokens`, which SDKs want, is always 0."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(Struct, frozen=True):
    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(Struct, frozen=True):
    reason: Literal["max_output_tokens"]


class ResponseError(Struct, frozen=True):
    code: str
    message: str


class ReasoningUsed(Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


class Response(Struct, frozen=True, kw_only=True):
    """One answer.  Times are in seconds since 1970."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status = "in_progress"
    background: bool = False
    conversation: ConversationNamed | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: None = None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: ReasoningUsed = ReasoningUsed()
    service_tier: Literal["default"] = "default"
    store: bool = True
    temperature: float
    text: dict[str, Any]
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int = 0
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    metadata: dict[str, str] = {}


class Deleted(Struct, frozen=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(Struct, frozen=True):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"
