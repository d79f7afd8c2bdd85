"""What an answer is made of: visible text, reasoning, and calls of tools, in the order written."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class Text(Struct, frozen=True, gc=False, tag="text"):
    """Text for the user."""

    text: str


class Reasoning(Struct, frozen=True, gc=False, tag="reasoning"):
    """Text in which the model thinks; without its markup."""

    text: str


class CallBegun(Struct, frozen=True, gc=False, tag="call_begun"):
    """Call number `index` of the answer, counted from 0, names the tool `name`."""

    index: int
    name: str


class CallArguments(Struct, frozen=True, gc=False, tag="call_arguments"):
    """More of a call's arguments: pieces that joined are the text of one JSON object."""

    index: int
    text: str


class CallEnded(Struct, frozen=True, gc=False, tag="call_ended"):
    """The call is complete; its arguments are valid JSON.  A call without this was cut off."""

    index: int


Part = Text | Reasoning | CallBegun | CallArguments | CallEnded


class TextReader(Protocol):
    """Takes one answer's text apart as it comes.  What is not yet decided is held back."""

    def feed(self, text: str) -> tuple[Part, ...]:
        """Return the parts that `text` decides.  Joined over a text, the same at every split."""
        ...

    def flush(self, *, cut: bool = False) -> tuple[Part, ...]:
        """Return what was held back: no more text comes.

        `cut` says that the answer was to go on: of a call that had begun nothing is shown.
        """
        ...

    @property
    def done(self) -> bool:
        """Whether nothing that still comes would be shown, so that the row may end."""
        ...


class PlainText:
    """Reads an answer in which nothing is markup."""

    done = False

    def feed(self, text: str) -> tuple[Part, ...]:
        return (Text(text),) if text else ()

    def flush(self, *, cut: bool = False) -> tuple[Part, ...]:
        return ()
