"""What an answer shows, as parts: without the blank space that only separates markup."""

from __future__ import annotations

from collections.abc import Sequence

from mlxbun.domain.conversation.markup.tools import Call
from mlxbun.domain.conversation.parts import (
    CallArguments,
    CallBegun,
    CallEnded,
    Part,
    Reasoning,
    Text,
)

_BETWEEN = "\n\n"


class Shown:
    """Gathers parts.

    Newlines around a thought go, so does blank space around calls; space that may turn out to
    stand before a call is held back if `calls` may come.  With `one_call`, nothing is shown after
    the first call; with `no_repeats`, after a call that was made before, which is left out.
    """

    def __init__(self, *, calls: bool, one_call: bool, no_repeats: bool = False) -> None:
        self._parts: list[Part] = []
        self._calls = calls
        self._one_call = one_call
        self._no_repeats = no_repeats
        self._made: set[Call] = set()
        self._repeats = False
        self._space: str = ""
        self._gap: str = ""
        self._leading: str | None = ""  # what goes at the beginning of a text; None is all space
        self._thought = False
        self._joint = ""  # what goes between two messages
        self._spoken = False
        self._last: type[Part] | None = None
        self.blank = True  # nothing visible since the beginning, a thought, or a call
        self.num_calls = 0

    @property
    def done(self) -> bool:
        return self._repeats or (self._one_call and self.num_calls > 0)

    def take(self) -> tuple[Part, ...]:
        parts = tuple(self._parts)
        self._parts.clear()
        return parts

    def text(self, text: str) -> None:
        if self.done:
            return
        if self.blank and self._leading != "" and not self._space:
            text = text.lstrip(self._leading)
        text = self._space + text
        kept = text.rstrip() if self._calls or self.blank else text
        self._space = text[len(kept) :]
        if kept:
            self._add(Text(self._joint + kept))
            self._joint, self._spoken = "", True
            self.blank = False

    def thought(self, text: str) -> None:
        if self.done:
            return
        if not self._thought:
            text = text.lstrip("\n")
        text = self._gap + text
        kept = text.rstrip("\n")
        self._gap = text[len(kept) :]
        if kept:
            self._add(Reasoning(kept))
            self._thought = True

    def text_begins(self) -> None:
        """Begin a message, which is a paragraph of its own: nothing in its text says so."""
        self._space, self.blank = "", True
        self._joint = _BETWEEN if self._spoken else ""

    def thought_begins(self) -> None:
        """Begin a thought: one right after another is a paragraph of its own."""
        self._space = ""
        self._gap = _BETWEEN if self._last is Reasoning else ""
        self._thought = False

    def thought_ends(self) -> None:
        self._gap = ""
        self.blank, self._leading = True, "\n"

    def calls(self, calls: Sequence[Call]) -> None:
        self._space = ""
        for call in calls:
            self._repeats = self._no_repeats and call in self._made
            if self.done:
                return
            self._made.add(call)
            at = self.num_calls
            self._add(CallBegun(at, call.name))
            self._add(CallArguments(at, call.arguments))
            self._add(CallEnded(at))
            self.num_calls += 1
        self.blank, self._leading = True, None

    def _add(self, part: Part) -> None:
        self._parts.append(part)
        self._last = type(part)

    def drop_space(self) -> None:
        """Drop the space that was held back: markup that was cut off followed it."""
        self._space = ""

    def end(self) -> None:
        """Show the space that was held back: it separates nothing."""
        if self._space and not self.done:
            self._parts.append(Text(self._space))
            self._space = ""
