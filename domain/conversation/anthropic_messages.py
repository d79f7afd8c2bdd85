"""Messages of Anthropic's protocol, made into chat messages.

One message of theirs is a list of blocks.  What a user's message says of tools' results becomes
turns of its own, first, since templates want results right after the calls; all else of it stays
one turn.  Blocks that nothing here can show to a model leave a note, so that a session which has
one goes on.  What pictures and files become is decided by `normalise`, as for every protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from mlxbun.domain.conversation.translation import Translation
from mlxbun.domain.conversation.values import mapping, shown, string, well_formed
from mlxbun.domain.conversation.volatile import without_marks
from mlxbun.domain.refusal import Refused

ERROR = "[error] "
_BETWEEN = "\n\n"  # texts of different blocks
_ROLES = ("user", "assistant", "system")


def translate(messages: Sequence[object], system: object = None) -> Translation:
    """Return the chat messages that `system` and `messages` mean.

    Raises Refused, naming the field at fault.
    """
    if not messages:
        raise Refused("invalid_value", "messages: at least one message is required", "messages")
    writer = _Writer()
    if (said := _system(system, "system")) is not None:
        writer.add({"role": "system", "content": said}, "system")
    last = "system"
    for i, message in enumerate(messages):
        field = f"messages[{i}]"
        message = mapping(message, field)
        role, content = message.get("role"), message.get("content")
        match role:
            case "user":
                writer.user(content, field)
            case "assistant":
                writer.assistant(content, field)
            case "system":
                text = _system(content, f"{field}.content")
                writer.add({"role": "system", "content": text or ""}, field)
            case _:
                said = "is missing" if role is None else f"is {shown(role)}"
                raise Refused(
                    "invalid_value",
                    f"{field}.role {said}; it must be one of {', '.join(_ROLES)}",
                    f"{field}.role",
                )
        last = role if role != "system" else last
    return _with_beginning(writer.done) if last == "assistant" else writer.done


def _with_beginning(done: Translation) -> Translation:
    """Return `done` with its last message, the assistant's, as what the answer begins with."""
    *before, begun = done.messages
    text = begun["content"]
    if begun["role"] != "assistant" or set(begun) != {"role", "content"}:
        message = (
            "the conversation must end with a user message, or with the text that the answer "
            "begins with"
        )
        raise Refused("unsupported", message, "messages")
    if text != text.rstrip():
        message = "the text that the answer begins with must not end with white space"
        raise Refused("invalid_value", f"messages: {message}", "messages")
    return replace(done, messages=before, begun=text)


class _Writer:
    def __init__(self) -> None:
        self.done = Translation()
        self._names: dict[str, str] = {}  # of called tools, by the call's id

    def add(self, message: dict[str, Any], field: str) -> str:
        """Add one chat message that came from `field`; return the name of its own field."""
        at = f"messages[{len(self.done.messages)}]"
        self.done.messages.append(message)
        self.done.origins[at] = field
        return at

    def user(self, content: object, field: str) -> None:
        said = _Content()
        blocks = _blocks(content, f"{field}.content")
        for block, at in blocks:
            if block.get("type") == "tool_result":
                self._result(block, at)
        has_results = False
        for block, at in blocks:
            if block.get("type") == "tool_result":
                has_results = True
            else:
                self._block(block, at, said)
        if said.parts or not has_results:
            self._write({"role": "user"}, said, field)

    def assistant(self, content: object, field: str) -> None:
        text, after_note = "", False
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        origins: list[str] = []
        for block, at in _blocks(content, f"{field}.content"):
            match block.get("type"):
                case "text":
                    more = string(block, "text", at) or ""
                    text += _BETWEEN + more if more and after_note else more
                    after_note = False
                case "thinking":
                    thoughts.append(string(block, "thinking", at) or "")
                case "redacted_thinking":
                    pass  # sealed for another server; nobody here can read it
                case "tool_use":
                    calls.append(self._call(block, at))
                    origins.append(at)
                case _:
                    other = _Content()
                    self._block(block, at, other)
                    note = other.note()
                    text += _BETWEEN + note if text and note else note
                    after_note = bool(note)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if any(thoughts):
            message["reasoning_content"] = _BETWEEN.join(filter(None, thoughts))
        if calls:
            message["tool_calls"] = calls
        mine = self.add(message, field)
        for j, at in enumerate(origins):
            self.done.origins[f"{mine}.tool_calls[{j}].function.arguments"] = f"{at}.input"

    def _call(self, block: Mapping[str, object], field: str) -> dict[str, Any]:
        name = string(block, "name", field)
        if not name:
            raise Refused("invalid_value", f"{field}.name is missing", f"{field}.name")
        call_id = string(block, "id", field)
        if call_id is not None:
            self._names[call_id] = name
        function = {"name": name, "arguments": block.get("input")}
        return {"id": call_id, "type": "function", "function": function}

    def _result(self, block: Mapping[str, object], field: str) -> None:
        said = _Content()
        for inner, at in _blocks(block.get("content"), f"{field}.content"):
            self._block(inner, at, said)
        if block.get("is_error") is True:
            said.lead(ERROR)
        turn: dict[str, Any] = {"role": "tool"}
        if (call_id := string(block, "tool_use_id", field)) is not None:
            turn["tool_call_id"] = call_id
            if call_id in self._names:
                turn["name"] = self._names[call_id]
        self._write(turn, said, field)

    def _write(self, turn: dict[str, Any], said: _Content, field: str) -> None:
        mine = self.add({**turn, "content": said.content}, field)
        for j, at in enumerate(said.origins):
            self.done.origins[f"{mine}.content[{j}]"] = at

    def _block(self, block: Mapping[str, object], field: str, said: _Content) -> None:
        """Add to `said` what one block shows."""
        kind = block.get("type")
        if kind is not None and not isinstance(kind, str):
            raise Refused("invalid_value", f"{field}.type must be a string", f"{field}.type")
        match kind:
            case "text":
                said.text(string(block, "text", field) or "", field)
            case "image":
                said.media({"type": "image", "source": block.get("source")}, field)
            case "document":
                self._document(block, field, said)
            case "search_result":
                self._no_citations(block)
                for key in ("title", "source"):
                    said.text(string(block, key, field) or "", field)
                for inner, at in _blocks(block.get("content"), f"{field}.content"):
                    self._block(inner, at, said)
            case "compaction":  # the summary of what was said before
                said.text(string(block, "content", field) or "", field)
            case "tool_addition":
                self._addition(block, field)
            case "tool_removal":
                tool = mapping(block.get("tool"), f"{field}.tool")
                name = string(tool, "name", f"{field}.tool") or ""
                said.text(f"[the tool {name} is no longer offered]", field)
            case "tool_reference":
                said.text(f"[tool {string(block, 'tool_name', field) or ''}]", field)
            case _:
                text = string(block, "text", field) if "text" in block else None
                said.text(text or f"[{kind or 'block'} left out: it cannot be shown]", field)

    def _document(self, block: Mapping[str, object], field: str, said: _Content) -> None:
        source = mapping(block.get("source"), f"{field}.source")
        self._no_citations(block)
        for key in ("title", "context"):
            said.text(string(block, key, field) or "", field)
        match source.get("type"):
            case "text":
                said.text(string(source, "data", f"{field}.source") or "", field)
            case "content":
                for inner, at in _blocks(source.get("content"), f"{field}.source.content"):
                    self._block(inner, at, said)
            case _:
                said.media({"type": "file", "source": source}, field)

    def _no_citations(self, block: Mapping[str, object]) -> None:
        asked = block.get("citations")
        if isinstance(asked, Mapping) and cast(Mapping[str, object], asked).get("enabled") is True:
            self.done.notes.add("citations: the model is not asked for any")

    def _addition(self, block: Mapping[str, object], field: str) -> None:
        """Take a tool that is offered from here on; one that is only named is there already."""
        tool = mapping(block.get("tool"), f"{field}.tool")
        if tool.get("type") == "tool_definition":
            self.done.tools.append((tool.get("definition"), f"{field}.tool.definition"))


class _Content:
    """The parts of one turn: texts of neighbouring blocks are joined."""

    def __init__(self) -> None:
        self.parts: list[dict[str, Any]] = []
        self.origins: list[str] = []

    @property
    def content(self) -> str | list[dict[str, Any]]:
        if all(part["type"] == "text" for part in self.parts):
            return "".join(part["text"] for part in self.parts)
        return self.parts

    def text(self, text: str, field: str) -> None:
        if not text:
            return
        if self.parts and self.parts[-1]["type"] == "text":
            self.parts[-1]["text"] += _BETWEEN + text
            return
        self.parts.append({"type": "text", "text": text})
        self.origins.append(field)

    def media(self, part: dict[str, Any], field: str) -> None:
        self.parts.append(part)
        self.origins.append(field)

    def lead(self, text: str) -> None:
        """Put `text` before all else."""
        if self.parts and self.parts[0]["type"] == "text":
            self.parts[0]["text"] = text + self.parts[0]["text"]
            return
        self.parts.insert(0, {"type": "text", "text": text})
        self.origins.insert(0, "")

    def note(self) -> str:
        """Return it all as text: pictures and files leave a note."""
        kinds = (part.get("text") or f"[{part['type']} left out]" for part in self.parts)
        return _BETWEEN.join(kinds)


def _system(said: object, field: str) -> str | None:
    """Return the text of a system prompt; None for none at all."""
    if said is None:
        return None
    content = _Content()
    for block, at in _blocks(said, field):
        if block.get("type") not in (None, "text"):
            raise Refused("unsupported", f"{at} must be text", at)
        content.text(without_marks(string(block, "text", at) or ""), at)
    return "".join(part["text"] for part in content.parts) or None


def _blocks(content: object, field: str) -> list[tuple[Mapping[str, object], str]]:
    """Return pairs of a block and its field; a string is one block of text."""
    if content is None:
        return []
    if isinstance(content, str):
        return [({"type": "text", "text": well_formed(content)}, field)]
    if isinstance(content, Mapping) or not isinstance(content, Sequence):
        raise Refused("invalid_value", f"{field} must be a string or a list of blocks", field)
    blocks: list[tuple[Mapping[str, object], str]] = []
    for j, block in enumerate(cast(Sequence[object], content)):
        at = f"{field}[{j}]"
        if isinstance(block, str):
            block = {"type": "text", "text": block}
        blocks.append((mapping(block, at), at))
    return blocks
