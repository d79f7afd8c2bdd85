from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator
from openai.types.responses import (
    ResponseApplyPatchToolCall,
    ResponseFunctionShellToolCall,
    ResponseOutputItem,
)
from openai.types.responses.response_output_item import LocalShellCall
from pydantic import TypeAdapter

from mlxbun.domain.conversation.response_client_tools import (
    FUNCTIONS,
    ClientKind,
    asked_of_client,
    asked_of_model,
    client_kind,
)

ITEM: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
KINDS: list[ClientKind] = list(FUNCTIONS)
CALLS: dict[ClientKind, type[Any]] = {
    "local_shell": LocalShellCall,
    "shell": ResponseFunctionShellToolCall,
    "apply_patch": ResponseApplyPatchToolCall,
}
ARGUMENTS: list[tuple[ClientKind, dict[str, Any]]] = [
    ("local_shell", {"command": ["ls", "-l"], "working_directory": "/", "timeout_ms": 5}),
    ("shell", {"commands": ["ls", "pwd"], "timeout_ms": 5, "max_output_length": 9}),
    ("apply_patch", {"type": "update_file", "path": "a", "diff": "-a\n+b"}),
    ("apply_patch", {"type": "create_file", "path": "a", "diff": "+b"}),
    ("apply_patch", {"type": "delete_file", "path": "a"}),
]


def item(kind: ClientKind, said: dict[str, Any]) -> Any:
    """Return the call that arguments become, checked by the official types."""
    key = "operation" if kind == "apply_patch" else "action"
    call = {"type": f"{kind}_call", "id": "x", "call_id": "y", "status": "completed",
            key: asked_of_client(kind, said)}  # fmt: skip
    checked = ITEM.validate_python(call)
    assert isinstance(checked, CALLS[kind])
    return call


@pytest.mark.parametrize(("kind", "said"), ARGUMENTS)
def test_what_the_model_said_comes_back_to_it_as_it_said_it(
    kind: ClientKind, said: dict[str, Any]
) -> None:
    Draft202012Validator(FUNCTIONS[kind]["parameters"]).validate(said)
    assert asked_of_model(kind, item(kind, said)) == said


@given(kind=st.sampled_from(KINDS), data=st.data())
def test_whatever_a_model_says_is_a_call_of_the_official_types(
    kind: ClientKind, data: st.DataObject
) -> None:
    names = list(FUNCTIONS[kind]["parameters"]["properties"])
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=4,
    )
    item(kind, data.draw(st.dictionaries(st.sampled_from(names), values)))


def test_a_command_in_one_text_is_a_line_of_a_shell() -> None:
    assert asked_of_client("local_shell", {"command": "ls | wc"})["command"] == [
        "bash", "-lc", "ls | wc",
    ]  # fmt: skip
    assert asked_of_client("shell", {"commands": "ls"})["commands"] == ["ls"]


@pytest.mark.parametrize(
    ("tool", "kind"),
    [
        ({"type": "local_shell"}, "local_shell"),
        ({"type": "apply_patch"}, "apply_patch"),
        ({"type": "shell"}, "shell"),
        ({"type": "shell", "environment": {"type": "local"}}, "shell"),
        ({"type": "shell", "environment": {"type": "container_auto"}}, None),
        ({"type": "web_search"}, None),
        ({"type": ["shell"]}, None),
        ({}, None),
    ],
)
def test_a_shell_in_a_container_is_not_the_clients(
    tool: dict[str, Any], kind: ClientKind | None
) -> None:
    assert client_kind(tool) == kind
