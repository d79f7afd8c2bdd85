"""What a response must look like, in the words of whoever asks."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec
from msgspec import Struct


class JsonObject(Struct, frozen=True, tag="json_object"):
    """Any JSON object."""


class JsonSchema(Struct, frozen=True, tag="json_schema"):
    """JSON of a schema.  `strict` refuses what cannot be enforced; `compact` has no spaces."""

    schema: Any
    strict: bool = False
    compact: bool = False


class Regex(Struct, frozen=True, tag="regex"):
    """Text that a regular expression matches as a whole."""

    pattern: str


class Grammar(Struct, frozen=True, tag="grammar"):
    """Text of a grammar in EBNF, whose first rule is `root`."""

    ebnf: str


class Choice(Struct, frozen=True, tag="choice"):
    """One of a few texts."""

    texts: tuple[str, ...]


# How the arguments of a call are written.
Style = Literal["json", "qwen_xml", "minimax_xml", "deepseek_xml", "glm_xml", "gemma"]


class Tag(Struct, frozen=True):
    """A call: `begin`, arguments of `schema`, `end`.

    Of a schema that cannot be enforced, as much is as can be.  `field` is the request's name of
    it, for what is said of that.
    """

    begin: str
    end: str
    schema: Any
    field: str = ""


class Calls(Struct, frozen=True, tag="calls"):
    """Calls: `first`, a tag, then `between` and a tag any number of times, `last`.

    With `required` the text is nothing but calls.  Else it is any text, until it says `trigger`,
    with which `first` and the first tag's `begin`, joined, start: then it is calls.  With
    `otherwise` it is that instead of any text, `before_otherwise` in front of it.  With `only_one`
    there is one call at most.
    """

    tags: tuple[Tag, ...]
    trigger: str
    style: Style = "json"
    first: str = ""
    between: str = ""
    last: str = ""
    required: bool = False
    only_one: bool = False
    otherwise: JsonSchema | JsonObject | None = None
    before_otherwise: str = ""


Wanted = JsonObject | JsonSchema | Regex | Grammar | Choice | Calls


class Constraint(Struct, frozen=True):
    """`after` is text that must come before it, as the end of reasoning; None is from the start.

    `field` names the request's field that asked, for refusals.
    """

    wanted: Wanted
    field: str
    after: str | None = None

    @property
    def digest(self) -> str:
        """What equal constraints have in common, and others have not."""
        said = msgspec.json.encode((self.wanted, self.after))
        return hashlib.sha256(said).hexdigest()
