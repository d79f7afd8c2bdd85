"""Chat prompts: a conversation as a protocol understood it, and the text that a model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from mlxbun.application.service import Model
from mlxbun.application.wanted_answers import HARMONY, ForcedCall
from mlxbun.domain.constraint import Constraint, hint_of
from mlxbun.domain.conversation import Turn, normalise
from mlxbun.domain.refusal import Refused


class Chat(Struct, frozen=True):
    """A conversation as the wire had it; `arguments` are for the template.

    With `one_call` an answer ends after its first call; `forced` answers are calls.  Arguments
    of tools in `strict` fit their schemas.  The answer goes on from the text `begun`.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    arguments: Mapping[str, Any] = {}
    one_call: bool = False
    forced: ForcedCall | None = None
    strict: frozenset[str] = frozenset()
    begun: str = ""


def template_arguments(
    effort: str | None, arguments: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return what a reasoning effort and a request's own arguments say to the template.

    The request's own win.  Raises Refused for those that would replace the conversation.
    """
    said = dict(arguments or {})
    for name in ("messages", "tools"):
        if name in said:
            field = f"chat_template_kwargs.{name}"
            raise Refused("invalid_value", f"{field} cannot be set: use the field {name}", field)
    if said.get("add_generation_prompt", True) is not True:
        field = "chat_template_kwargs.add_generation_prompt"
        raise Refused(
            "unsupported", f"{field} cannot be false: a prompt ends where the answer begins", field
        )
    if effort is None:
        return said
    return {"enable_thinking": effort != "none", "reasoning_effort": effort, **said}


def hint_for(model: Model, constraint: Constraint | None, forced: ForcedCall | None) -> str | None:
    """Return what a model is told whose answers nothing enforces."""
    if model.constraints is not None:
        return None
    if constraint is not None:
        return hint_of(constraint.wanted)
    if forced is None:
        return None
    name = forced.name
    return f"Answer by calling {f'the tool {name}' if name else 'one of the tools'}."


def rendered(model: Model, chat: Chat, hint: str | None) -> tuple[list[Turn], str]:
    """Return the turns of a conversation, a hint before them, and its prompt."""
    try:
        turns = normalise(chat.messages, model_id=model.card.id)
        if hint is not None:
            turns = [{"role": "system", "content": hint}, *turns]
        text = model.tokenizer.render_chat(turns, chat.tools, chat.arguments)
    except RecursionError:
        raise Refused("invalid_value", "the request nests too deeply", "messages") from None
    if chat.begun:
        _check_begun(model, chat, text)
    return turns, text + chat.begun


def _check_begun(model: Model, chat: Chat, text: str) -> None:
    """Raise Refused where an answer's beginning would not be read as its visible text."""
    why = None
    if chat.forced is not None:
        why = "beside a forced call"
    elif model.family.name == HARMONY or model.family.thinks_after(text):
        why = "for a model whose answers begin with thoughts"
    if why is not None:
        message = f"the conversation must end with a user message: no answer is begun {why}"
        raise Refused("unsupported", message, "messages")
