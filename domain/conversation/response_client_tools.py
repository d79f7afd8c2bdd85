"""Tools of the Responses protocol that a client runs and a request only names by type.

The model is shown a function for each; what it is called with becomes the action, or the
operation, that the client knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

ClientKind = Literal["local_shell", "shell", "apply_patch"]

_TEXT: dict[str, Any] = {"type": "string"}
_TEXTS: dict[str, Any] = {"type": "array", "items": _TEXT}
_MILLISECONDS = {"type": "integer", "description": "Ends what takes longer."}

FUNCTIONS: Mapping[ClientKind, Mapping[str, Any]] = {
    "local_shell": {
        "description": "Runs a command on the user's machine.",
        "parameters": {
            "type": "object",
            "properties": {
                "command": {**_TEXTS, "description": "A program and its arguments."},
                "working_directory": _TEXT,
                "timeout_ms": _MILLISECONDS,
            },
            "required": ["command"],
        },
    },
    "shell": {
        "description": "Runs commands in a shell on the user's machine.",
        "parameters": {
            "type": "object",
            "properties": {
                "commands": {**_TEXTS, "description": "Each is a line of a shell."},
                "timeout_ms": _MILLISECONDS,
                "max_output_length": {"type": "integer", "description": "Of each, in characters."},
            },
            "required": ["commands"],
        },
    },
    "apply_patch": {
        "description": "Creates, changes or deletes a file on the user's machine.",
        "parameters": {
            "type": "object",
            "properties": {
                "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
                "path": _TEXT,
                "diff": {
                    "type": "string",
                    "description": "Lines that begin with a blank, + or -, as in a unified diff "
                    "without its head; @@ stands between places. Not for delete_file.",
                },
            },
            "required": ["type", "path"],
        },
    },
}


def client_kind(tool: Mapping[str, Any]) -> ClientKind | None:
    """Return which of these a tool of a request is; None for others, and for a shell elsewhere."""
    kind = tool.get("type")
    if kind == "shell":
        where = tool.get("environment")
        if not isinstance(where, Mapping):
            return "shell"
        return "shell" if cast(Mapping[str, Any], where).get("type") == "local" else None
    return kind if kind in ("local_shell", "apply_patch") else None


def asked_of_client(kind: ClientKind, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the action or operation that arguments ask for; what does not fit is left out."""
    match kind:
        case "local_shell":
            action = _fitting(said, working_directory=str, timeout_ms=int)
            return {"type": "exec", "command": _command(said.get("command")), "env": {}, **action}
        case "shell":
            limits = _fitting(said, timeout_ms=int, max_output_length=int)
            return {"commands": _texts(said.get("commands")), **limits}
        case "apply_patch":
            operation = said.get("type")
            if operation not in ("create_file", "delete_file"):
                operation = "update_file"
            text = {} if operation == "delete_file" else {"diff": "", **_fitting(said, diff=str)}
            return {"type": operation, "path": "", **_fitting(said, path=str), **text}


def asked_of_model(kind: str, item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments that an item of a history, of the tool `kind`, was called with."""
    for key in ("action", "operation"):
        said = item.get(key)
        if isinstance(said, Mapping):
            asked = cast(Mapping[str, Any], said)
            return {
                name: value
                for name, value in asked.items()
                if value not in (None, {}) and (kind, name) != ("local_shell", "type")
            }
    return {k: v for k, v in item.items() if k not in ("type", "id", "call_id", "status")}


def _fitting(said: Mapping[str, Any], **types: type) -> dict[str, Any]:
    found = {name: said.get(name) for name in types}
    return {n: v for n, v in found.items() if isinstance(v, types[n]) and not isinstance(v, bool)}


def _command(said: object) -> list[str]:
    """Return a program and its arguments; one text is a line of a shell."""
    return ["bash", "-lc", said] if isinstance(said, str) else _texts(said)


def _texts(said: object) -> list[str]:
    if isinstance(said, str):
        return [said]
    if not isinstance(said, Sequence):
        return []
    return [one if isinstance(one, str) else str(one) for one in cast(Sequence[object], said)]
