"""A TextReader whose markup is written out: <think>...</think>, and <call NAME>JSON</call>."""

from __future__ import annotations

import re

from msgspec.structs import replace

from mlxbun.application.prepare import Ask, Chat, Prepared, Preparer
from mlxbun.application.service import Model, Service
from mlxbun.domain.conversation import CallArguments, CallBegun, CallEnded, Part, Reasoning, Text

_TAG = re.compile(r"<think>|</think>|<call (\w+)>|</call>")
_HELD = re.compile(r"<[^>]*$")


class TaggedReader:
    """Port TextReader."""

    done = False

    def __init__(self) -> None:
        self._held = ""
        self._inside = "text"
        self._num_calls = 0

    def feed(self, text: str) -> tuple[Part, ...]:
        text = self._held + text
        held = _HELD.search(text)
        self._held = text[held.start() :] if held else ""
        return self._read(text[: held.start()] if held else text)

    def flush(self) -> tuple[Part, ...]:
        text, self._held = self._held, ""
        return self._read(text)

    def _read(self, text: str) -> tuple[Part, ...]:
        parts: list[Part] = []
        at = 0
        for tag in _TAG.finditer(text):
            self._say(text[at : tag.start()], parts)
            at = tag.end()
            if tag[0] == "<think>":
                self._inside = "thoughts"
            elif tag[1] is not None:
                parts.append(CallBegun(self._num_calls, tag[1]))
                self._inside = "call"
            else:
                if tag[0] == "</call>":
                    parts.append(CallEnded(self._num_calls))
                    self._num_calls += 1
                self._inside = "text"
        self._say(text[at:], parts)
        return tuple(parts)

    def _say(self, text: str, parts: list[Part]) -> None:
        if not text:
            return
        match self._inside:
            case "text":
                parts.append(Text(text))
            case "thoughts":
                parts.append(Reasoning(text))
            case _:
                parts.append(CallArguments(self._num_calls, text))


class TaggedPreparer(Preparer):
    """Prepares answers that a TaggedReader reads; keeps the conversations that it was given."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self.chats: list[Chat] = []

    async def chat(self, model: Model, chat: Chat, ask: Ask) -> Prepared:
        self.chats.append(chat)
        return replace(await super().chat(model, chat, ask), reader=TaggedReader)
