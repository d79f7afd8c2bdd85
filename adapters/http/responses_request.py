"""What a Responses request asks for: its items and those before them, its tools, its policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from msgspec import Struct

from mlxbun.adapters.http.answers import named
from mlxbun.adapters.http.responses_types import ConversationNamed, ResponsesRequest
from mlxbun.application.responses_store import ResponsesStore
from mlxbun.application.wanted_answers import ForcedCall
from mlxbun.domain.conversation import well_formed_json
from mlxbun.domain.conversation.response_client_tools import client_kind
from mlxbun.domain.conversation.response_items import Item, input_items, translate
from mlxbun.domain.conversation.response_tools import ResponseTools, response_tools
from mlxbun.domain.conversation.translation import Translation
from mlxbun.domain.refusal import Refused

_PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
    "local_shell_call": "lsh_",
    "local_shell_call_output": "lsho_",
    "shell_call": "sh_",
    "shell_call_output": "sho_",
    "apply_patch_call": "apc_",
    "apply_patch_call_output": "apco_",
}
_WITH_STATUS = frozenset(_PREFIXES) - {"reasoning"}  # SDKs' types of listed items want one
ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"


class Asked(Struct, frozen=True):
    """`items` are all that the prompt is made of, each with an id; `translation` is of them.

    The first `num_before` of them are of an earlier response, or of the `conversation`.
    """

    items: list[Item]
    num_before: int
    instructions: str | None
    tools: ResponseTools
    translation: Translation
    conversation: str | None = None

    @property
    def own(self) -> list[Item]:
        """The items that the request itself brought."""
        return self.items[self.num_before :]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a Warning header says, in ASCII."""
        said: list[str] = []
        if kinds := named(self.tools.hosted):
            said.append(f"tools of these types are run by nobody here and not offered: {kinds}")
        if names := named(self.tools.free):
            said.append(f"the grammars of these tools are told and not enforced: {names}")
        return tuple(said)


def understand(
    body: ResponsesRequest, store: ResponsesStore, new_id: Callable[[str], str]
) -> Asked:
    """Return what `body` asks for.  Raises Refused, naming the field at fault.

    A request that continues a response has its items and, if it brings none, its instructions;
    one in a conversation has its items.
    """
    well_formed_json(body.tools, "tools")  # the answer repeats what is checked here
    well_formed_json(body.tool_choice, "tool_choice")
    well_formed_json(body.text and body.text.format, "text.format")
    before: list[Item] = []
    instructions = body.instructions
    talk = body.conversation
    conversation = talk.id if isinstance(talk, ConversationNamed) else talk
    if conversation is not None:
        if body.previous_response_id is not None:
            message = "conversation and previous_response_id both say what came before: name one"
            raise Refused("invalid_value", message, "conversation")
        before = store.conversation(conversation, "conversation").items
    if body.previous_response_id is not None:
        previous = store.previous(body.previous_response_id)
        before = previous.history
        if instructions is None:
            instructions = previous.instructions
    own = known(input_items(body.input), "input", store, new_id)
    tools = chosen(response_tools(body.tools), body.tool_choice)
    items = [*before, *own]
    translation = translate(items, tools, instructions=instructions, num_before=len(before))
    return Asked(items, len(before), instructions, tools, translation, conversation)


def known(
    items: Sequence[Item], field: str, store: ResponsesStore, new_id: Callable[[str], str]
) -> list[Item]:
    """Return items with ids and types, and kept ones for those that only name one."""
    return [_known(item, f"{field}[{i}]", store, new_id) for i, item in enumerate(items)]


def chosen(tools: ResponseTools, choice: Any) -> ResponseTools:
    """Return the tools that `tool_choice` leaves."""
    if choice == "none":
        return ResponseTools()
    said = _object(choice)
    return tools.only(_names(said.get("tools"))) if said.get("type") == "allowed_tools" else tools


def forced(tools: ResponseTools, choice: Any) -> ForcedCall | None:
    """Return which call an answer must be.  Raises Refused for a choice that is none."""
    if choice in (None, "auto", "none"):
        return None
    if choice == "required":
        return ForcedCall()
    said = _object(choice)
    if said.get("type") == "allowed_tools" and said.get("mode", "auto") in ("auto", "required"):
        return ForcedCall() if said.get("mode") == "required" else None
    name = said.get("name")
    if (named_by_type := client_kind(said)) is not None:
        return ForcedCall(named_by_type)
    if said.get("type") in ("function", "custom") and isinstance(name, str):
        namespace = said.get("namespace")
        inside = namespace if isinstance(namespace, str) else None
        return ForcedCall(tools.prompt_name(name, inside))
    message = "tool_choice must be none, auto, required, allowed_tools, or name a function"
    raise Refused("invalid_value", message, "tool_choice")


def form(body: ResponsesRequest) -> dict[str, Any]:
    """Return the form of the answer, by its field's name."""
    return {"text.format": body.text.format if body.text else None}


def answers(body: ResponsesRequest) -> bool:
    """Say whether more is asked for than that the prompt is read into the cache."""
    prewarms = body.prompt_cache_options is not None and body.prompt_cache_options.prewarm is True
    return body.generate is not False and not prewarms


def max_tokens(body: ResponsesRequest) -> int | None:
    if not answers(body):
        return 1  # which is drawn, and never shown
    said = [n for n in (body.max_output_tokens, body.max_tokens) if n is not None]
    return min(said, default=None)


def num_logprobs(body: ResponsesRequest) -> int | None:
    """Return how many alternatives a token gets, None without log-probabilities."""
    if body.top_logprobs or LOGPROBS in (body.include or ()):
        return body.top_logprobs or 0
    return None


def effort(body: ResponsesRequest) -> str | None:
    said = body.reasoning.effort if body.reasoning else None
    return "xhigh" if said == "max" else said


def _object(value: Any) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _names(tools: Any) -> frozenset[str]:
    if not isinstance(tools, list) or not all(isinstance(t, dict) for t in tools):  # pyright: ignore[reportUnknownVariableType]
        message = "tool_choice.tools must be a list of tools"
        raise Refused("invalid_value", message, "tool_choice.tools")
    listed = cast(list[dict[str, Any]], tools)
    return frozenset(str(client_kind(tool) or tool.get("name")) for tool in listed)


def _known(item: Item, field: str, store: ResponsesStore, new_id: Callable[[str], str]) -> Item:
    """Return the item with an id and a type, or the kept one that it refers to."""
    item = well_formed_json(item, field)
    said_id = item.get("id")
    if item.get("type") == "item_reference":
        if not isinstance(said_id, str):
            raise Refused("invalid_value", f"{field}.id must be a string", f"{field}.id")
        return store.item(said_id, f"{field}.id")
    kind = item.get("type", "message" if "role" in item else None)
    known = dict(item)
    if kind is not None:
        known["type"] = kind
    if not isinstance(said_id, str):
        known["id"] = new_id(_PREFIXES.get(str(kind), "item_"))
    if kind in _WITH_STATUS and known.get("status") is None:
        known["status"] = "completed"
    if kind == "message" and isinstance(content := item.get("content"), str):
        mine = item.get("role") == "assistant"
        text: dict[str, Any] = {
            "type": "output_text" if mine else "input_text",
            "text": content,
        }
        known["content"] = [text | ({"annotations": []} if mine else {})]
    return known
