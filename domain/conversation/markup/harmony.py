"""Harmony, the form of gpt-oss: an answer is messages, and each names its channel.

`<|channel|>analysis<|message|>thought<|end|><|start|>assistant<|channel|>final<|message|>text`;
a call is a message `to=functions.NAME` whose text is its arguments.  The prompt ends with
`<|start|>assistant`.  Source: OpenAI, harmony response format.
"""

from __future__ import annotations

import re

from mlxbun.domain.conversation.markup.json_calls import as_json_object
from mlxbun.domain.conversation.markup.reader import Answer
from mlxbun.domain.conversation.markup.shown import Shown
from mlxbun.domain.conversation.markup.source import Markers, Source, Steps, ahead, until
from mlxbun.domain.conversation.markup.tools import Call, Tools

CHANNEL, MESSAGE, START, END = "<|channel|>", "<|message|>", "<|start|>", "<|end|>"
CALL, RETURN, CONSTRAIN = "<|call|>", "<|return|>", "<|constrain|>"
TOKENS = (CHANNEL, MESSAGE, START, END, CALL, RETURN, CONSTRAIN)
STOPS = (CALL, RETURN)

_HEADER_END = Markers([MESSAGE])
_MESSAGE_END = Markers([END, CALL, RETURN, START, CHANNEL])
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_MAX_HEADER = 512


def harmony_answer(tools: Tools | None) -> Answer:
    """Return the steps of an answer; without `tools` every message is text or a thought."""

    def answer(source: Source, shown: Shown) -> Steps[None]:
        first = True
        while source.text or not source.ended:
            if not source.text:
                yield
                continue
            if first and not (yield from ahead(source, (CHANNEL, "to=", START, MESSAGE))):
                yield from _show(source, shown, "final")  # no header: an answer for the user
                first = False
                continue
            first = False
            header, marker = yield from until(source, _HEADER_END, limit=_MAX_HEADER)
            if not marker:
                shown.text("" if source.ended else header)  # a header that is cut off says nothing
                continue
            recipient = _RECIPIENT.search(header)
            channel = header.partition(CHANNEL)[2].lstrip()
            if recipient is None:
                kind = next((c for c in ("analysis", "final") if channel.startswith(c)), "text")
                yield from _show(source, shown, kind)
            else:
                name = tools.known(recipient[1]) if tools else None
                yield from _call(source, shown, name, header + marker)

    return answer


def _show(source: Source, shown: Shown, channel: str) -> Steps[None]:
    """Show a message up to its end."""
    add = shown.thought if channel == "analysis" else shown.text
    begin = shown.thought_begins if channel == "analysis" else shown.text_begins
    begin()
    while True:
        at, marker = _MESSAGE_END.find(source.text)
        add(source.take(len(source.text) if source.ended and not marker else at))
        if marker or source.ended:
            break
        yield
    _leave(source, marker)
    if channel == "analysis":
        shown.thought_ends()


def _call(source: Source, shown: Shown, name: str | None, header: str) -> Steps[None]:
    """Read a message to a function: a call if it is one, else text."""
    text, marker = yield from until(source, _MESSAGE_END)
    # <|call|> ends generation and is not seen; what is whole without it is a call all the same.
    called = marker == CALL
    arguments = as_json_object(text, unclosed=called) if text.strip() or not called else "{}"
    if name is not None and arguments is not None:
        shown.calls([Call(name, arguments)])
    elif marker or not source.cut:  # half a call is not sent
        shown.text(header + text + marker)
    if marker in (START, CHANNEL):
        source.give_back(marker)


def _leave(source: Source, marker: str) -> None:
    """Take what ends a message; what begins the next one stays."""
    if marker and marker not in (START, CHANNEL):
        source.take(len(marker))
