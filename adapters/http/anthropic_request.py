"""What a request of Anthropic's protocol asks for, taken from the wire."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from mlxbun.adapters.http.affinity import session_of
from mlxbun.adapters.http.answers import named
from mlxbun.adapters.http.anthropic_types import CountRequest, MessagesRequest, ToolChoice
from mlxbun.adapters.http.attempts import attempt_of
from mlxbun.adapters.http.request import Request
from mlxbun.application.chat_prompt import Chat, template_arguments
from mlxbun.application.row_specs import Ask
from mlxbun.application.wanted_answers import ForcedCall
from mlxbun.domain.constraint import Constraint, constraint_of
from mlxbun.domain.conversation.anthropic_messages import translate
from mlxbun.domain.conversation.anthropic_tools import OfferedTools, offered_tools
from mlxbun.domain.conversation.translation import Translation
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling_policy import SamplingRequest

_DRAWING = tuple(
    name for name in SamplingRequest.__struct_fields__ if name in MessagesRequest.__struct_fields__
)
_EVERY_CLAUDE = "claude-"


class Asked(Struct, frozen=True):
    """A request, understood.  `warnings` say what of it is not kept to."""

    translation: Translation
    tools: OfferedTools
    chat: Chat
    warnings: tuple[str, ...] = ()


def model_name(said: str | None) -> str | None:
    """Return the name to look for; None is whichever model is served.

    Claude Code asks for models of Anthropic's by name, also where it was told of another.
    """
    return None if said is None or said.startswith(_EVERY_CLAUDE) else said


def understand(body: CountRequest, template_defaults: Mapping[str, Any]) -> Asked:
    """Return what `body` asks.  Raises Refused, naming the field at fault."""
    try:
        translation = translate(body.messages, body.system)
    except RecursionError:
        raise Refused("invalid_value", "the request nests too deeply", "messages") from None
    listed = [(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ())]
    tools = offered_tools([*listed, *translation.tools])
    choice = body.tool_choice
    chat = Chat(
        translation.messages,
        [] if choice is not None and choice.type == "none" else tools.shown,
        _template_arguments(body, template_defaults),
        one_call=choice is not None and choice.disable_parallel_tool_use is True,
        forced=_forced(choice),
        strict=tools.strict,
        begun=translation.begun,
    )
    if translation.begun and constraint(body) is not None:
        message = (
            "the conversation must end with a user message: an answer of a format is not begun"
        )
        raise Refused("unsupported", message, "messages")
    warnings = [*_warnings(body, tools), *sorted(translation.notes)]
    return Asked(translation, tools, chat, tuple(warnings))


def ask(body: MessagesRequest, id: str, request: Request) -> Ask:
    """Return how to generate."""
    said: dict[str, Any] = {name: getattr(body, name) for name in _DRAWING}
    return Ask(
        id=id,
        fresh_seed=secrets.randbits(63),
        num_bytes=len(request.body),
        sampling=SamplingRequest(**said),
        max_tokens=max(body.max_tokens, 1),  # of none at all, one is drawn and never shown
        stop=tuple(body.stop_sequences or ()),
        session=session_of(
            request.head.headers, body.session_id, body.prompt_cache_key, _user(body)
        ),
        attempt=attempt_of(request),
        constraint=constraint(body),
    )


def _user(body: MessagesRequest) -> str | None:
    """Return a name for who asks.  What clients send may tell who it is, so it is not kept."""
    said = body.metadata.user_id if body.metadata is not None else None
    return said and f"user-{hashlib.sha256(said.encode()).hexdigest()[:24]}"


def _forced(choice: ToolChoice | None) -> ForcedCall | None:
    """Return which call an answer must be.  Raises Refused for a tool without a name."""
    if choice is None or choice.type in ("auto", "none"):
        return None
    if choice.type == "tool" and not choice.name:
        message = "tool_choice.name must say which tool"
        raise Refused("invalid_value", message, "tool_choice.name")
    return ForcedCall(choice.name if choice.type == "tool" else None)


def constraint(body: CountRequest) -> Constraint | None:
    """Return what the answer must look like."""
    form = body.output_config.format if body.output_config is not None else None
    return constraint_of({"output_config.format": form, "output_format": body.output_format})


def _template_arguments(body: CountRequest, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return what thinking, effort and the request's own arguments say to the template.

    A request that says nothing of thinking wants none, in this protocol; what the server was told
    wins over that, and what the request itself says over all.
    """
    arguments: dict[str, Any] = {"enable_thinking": False, **defaults}
    if body.thinking is not None:
        arguments["enable_thinking"] = body.thinking.type in ("enabled", "adaptive")
    effort = body.output_config.effort if body.output_config is not None else None
    if effort is not None:
        arguments["reasoning_effort"] = "xhigh" if effort == "max" else effort
    return {**arguments, **template_arguments(None, body.chat_template_kwargs)}


def _warnings(body: CountRequest, tools: OfferedTools) -> list[str]:
    said: list[str] = []
    if tools.left_out:
        kinds = named(tools.left_out)
        said.append(f"tools of these types are run by nobody here and not offered: {kinds}")
    if body.thinking is not None and body.thinking.budget_tokens is not None:
        said.append("thinking.budget_tokens is not kept to: max_tokens is what ends an answer")
    if body.thinking is not None and body.thinking.type == "between_tools":
        said.append("thinking.type between_tools: as disabled; what stands between calls is text")
    return said
