"""Tools whose schema Anthropic's models know and whose client runs them: what others must be told.

A request only names their type.  A function of the same arguments is shown instead, and its calls
come back as that tool's.  Those that answer in pictures (computer, browser) are not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

_TEXT: dict[str, Any] = {"type": "string"}
_LINE: dict[str, Any] = {"type": "integer"}
_PATH = {**_TEXT, "description": "Absolute path of a file or a folder."}


class ClientTool(Struct, frozen=True):
    description: str
    schema: Mapping[str, Any]


def client_tool(kind: str) -> ClientTool | None:
    """Return what a tool of the type `kind` is, None for one that is not of these."""
    name, _, version = kind.rpartition("_")
    if not version.isdecimal():
        return None
    match name:
        case "bash":
            return _BASH
        case "text_editor":
            return _OLD_EDITOR if version < "20250429" else _EDITOR
        case "memory":
            return _MEMORY
        case _:
            return None


def _by_command(
    description: str, commands: list[str], *required: str, **fields: dict[str, Any]
) -> ClientTool:
    properties = {"command": {"type": "string", "enum": commands}, **fields}
    schema = {"type": "object", "properties": properties, "required": ["command", *required]}
    return ClientTool(description, schema)


_BASH = ClientTool(
    "Runs a command in a shell that stays open between calls.",
    {
        "type": "object",
        "properties": {
            "command": {**_TEXT, "description": "The command, unless the shell is restarted."},
            "restart": {"type": "boolean", "description": "True starts the shell anew."},
        },
    },
)
_FILES: dict[str, dict[str, Any]] = {
    "file_text": {**_TEXT, "description": "For create: the whole text of the file."},
    "view_range": {
        "type": "array",
        "items": _LINE,
        "description": "For view: the first and the last line, from 1; -1 is the end.",
    },
    "old_str": {**_TEXT, "description": "For str_replace: what is there exactly once."},
    "new_str": {**_TEXT, "description": "For str_replace: what comes in its place."},
    "insert_line": {**_LINE, "description": "For insert: the line after which; 0 is the top."},
}
_INSERTED = {**_TEXT, "description": "For insert: the text."}
_EDITOR = _by_command(
    "Views and edits files.",
    ["view", "create", "str_replace", "insert"],
    "path",
    path=_PATH,
    **_FILES,
    insert_text=_INSERTED,
)
_OLD_EDITOR = _by_command(
    "Views and edits files. insert takes its text as new_str; undo_edit takes back the last edit.",
    ["view", "create", "str_replace", "insert", "undo_edit"],
    "path",
    path=_PATH,
    **_FILES,
)
_MEMORY = _by_command(
    "Files below /memories that stay from one conversation to the next: look there first, and "
    "note there what will be needed.",
    ["view", "create", "str_replace", "insert", "delete", "rename"],
    path={**_TEXT, "description": "For all but rename: a path below /memories."},
    **_FILES,
    insert_text=_INSERTED,
    old_path={**_TEXT, "description": "For rename."},
    new_path={**_TEXT, "description": "For rename."},
)
