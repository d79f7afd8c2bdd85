"""Shapes as the rules of a grammar: which text is JSON of a schema.

How the rules are cut decides what a mask costs: a string and the quote that ends it are one
recursion, and digits are one expression, so that nearly every token is allowed or not whatever
comes after.  Members come in the order of the schema.  A string whose length is bounded has no
escapes.  White space is bounded everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from functools import partial

import msgspec

from mlxbun.domain.constraint import number_rules, string_rules
from mlxbun.domain.constraint.array_rules import (
    MAX_LEAST,
    array_machine,
    distinct_values,
    num_states,
    unique_machine,
)
from mlxbun.domain.constraint.automaton import Automaton
from mlxbun.domain.constraint.json_values import object_of
from mlxbun.domain.constraint.notations import JSON, Arguments, Notation
from mlxbun.domain.constraint.object_rules import Member, Others, machine_of, members_of
from mlxbun.domain.constraint.rule_book import RuleBook, either, quoted
from mlxbun.domain.constraint.schema_keywords import SchemaRefused
from mlxbun.domain.constraint.schemas import Schemas
from mlxbun.domain.constraint.sequences import Machine, Signs, State, written
from mlxbun.domain.constraint.shapes import (
    EVERYTHING,
    NULL,
    TRUE_FALSE,
    Array,
    Conj,
    Node,
    Number,
    Object,
    Shape,
    Text,
    Values,
)
from mlxbun.domain.constraint.string_rules import TooManyStates

MAX_ARRAY_STATES = 2_000


class Spacing:
    """The white space of the JSON that is written."""

    def __init__(self, *, compact: bool) -> None:
        self.before = "" if compact else "space "
        self.after_colon = "" if compact else ' " "?'


_NUM_KINDS = len({type(shape) for shape in EVERYTHING})

COMMON = {
    **string_rules.COMMON,
    "name": "[a-zA-Z_] [a-zA-Z0-9_]{0,40}",
    # A count of blanks would cost seven times the memory.
    "space": '"" | " " | "\\n" (' + " | ".join(quoted(" " * n) for n in range(0, 25, 2)) + ")",
}


class JsonRules:
    """Writes the rules of one schema document into a book."""

    def __init__(
        self,
        schemas: Schemas,
        book: RuleBook,
        *,
        compact: bool,
        notation: Notation = JSON,
        scope: int = 0,
    ) -> None:
        """`scope` tells this document's rules from those of others in the book."""
        self._schemas = schemas
        self._book = book
        self._spacing = Spacing(compact=compact)
        self._notation = notation
        self._scope = scope
        self._possible: dict[Conj, bool] = {}
        self._asking: dict[Conj, None] = {}
        self._cycles = 0

    def value(self, conj: Conj) -> str:
        """Return the rule of what `conj` allows, which is possible."""
        return self._book.once((self._scope, "value", conj), lambda: self._body(conj))

    def arguments(self) -> str:
        """Return the rule of the whole, an object that is possible, as a call's arguments."""
        conj, layout = self._schemas.root(), self._notation.arguments
        if layout is None:
            return self.value(conj)
        found: list[str] = []
        for shape in self._schemas.shapes(conj):
            if not isinstance(shape, Object):
                continue
            members = members_of(shape, self._schemas, self.possible, self._noting(conj))
            declared = msgspec.structs.replace(members, others=())
            start, machine = machine_of(declared, partial(self._argument, layout))
            if machine:
                between = f"{quoted(layout.between)} " if layout.between else ""
                key = (self._scope, "arguments", conj, key_of(shape))
                found.append(written(machine, start, key, self._book, Signs("", "", between, "")))
        return either(found) or '""'

    def _argument(self, layout: Arguments, member: Member | Others) -> str:
        assert isinstance(member, Member), "others have no names to write"
        conj, end = member.value, layout.end
        found: list[str] = []
        for shape in self._meant(conj):
            as_text = isinstance(shape, Text)
            begin = self._book.sign(layout.begin(member.name, is_string=as_text))
            if isinstance(shape, Text):
                raw = string_rules.raw(self._spellable(shape, conj), self._book, end)
                found.append(f"{begin} {raw}")
            elif isinstance(shape, Values):
                for text in shape.texts:
                    value = json.loads(text)
                    begin = self._book.sign(
                        layout.begin(member.name, is_string=isinstance(value, str))
                    )
                    said = value if isinstance(value, str) else text
                    found.append(f"{begin} {self._book.sign(said + end)}")
            elif self._is_possible(shape, conj):
                found.append(f"{begin} ({self._expression(shape, conj)}) {self._book.sign(end)}")
        return f"({either(found)})"

    # -- is there any such value that ends? --

    def possible(self, conj: Conj | None) -> bool:
        if conj is None:
            return False
        known = self._possible.get(conj)
        if known is not None:
            return known
        if conj in self._asking:  # a value that needs itself
            self._cycles += 1
            return False
        before = self._cycles
        self._asking[conj] = None
        found = any(self._is_possible(shape, conj) for shape in self._meant(conj))
        del self._asking[conj]
        if found or self._cycles == before or not self._asking:
            self._possible[conj] = found
        return found

    def _is_possible(self, shape: Shape, conj: Conj) -> bool:
        match shape:
            case Values():
                return True
            case Text():
                return not string_rules.is_empty(self._spellable(shape, conj))
            case Number():
                return not number_rules.is_empty(shape)
            case Array():
                return bool(self._array(shape, conj)[1])
            case Object():
                return bool(self._object(shape, conj)[1])

    # -- rules --

    def _body(self, conj: Conj) -> str:
        shapes = self._meant(conj)
        if shapes == EVERYTHING and conj:
            return self.value(())
        return either(
            self._expression(shape, conj) for shape in shapes if self._is_possible(shape, conj)
        )

    def _meant(self, conj: Conj) -> tuple[Shape, ...]:
        """Return the shapes of `conj`; who says something of one kind, and no type, means it."""
        shapes = self._schemas.shapes(conj)
        said = tuple(shape for shape in shapes if shape not in EVERYTHING)
        kinds = {type(shape) for shape in shapes}
        everything = len(kinds) == _NUM_KINDS and TRUE_FALSE in shapes and NULL in shapes
        if not said or not everything or all(_only_denies(node) for node in conj):
            return shapes
        return shapes if any(map(self._schemas.names_kinds, conj)) else said

    def _expression(self, shape: Shape, conj: Conj) -> str:
        match shape:
            case Values(texts=texts):
                return either(self._book.sign(self._notation.spelled(text)) for text in texts)
            case Text():
                return self._string(self._spellable(shape, conj))
            case Number():
                return number_rules.expression(shape, self._book)
            case Array():
                start, machine = self._array(shape, conj)
                return self._written(
                    machine, start, (self._scope, "array", conj, key_of(shape)), "[", "]"
                )
            case Object():
                start, machine = self._object(shape, conj)
                return self._written(
                    machine, start, (self._scope, "object", conj, key_of(shape)), "{", "}"
                )

    def _written(self, machine: Machine, start: State, key: Hashable, open: str, close: str) -> str:
        space = self._spacing.before
        signs = Signs(f"{quoted(open)} ", space, f'"," {space}', f"{space}{quoted(close)}")
        return written(machine, start, key, self._book, signs)

    def _spellable(self, shape: Text, conj: Conj) -> Text:
        """Return `shape`, less the patterns that cannot be enforced together."""
        try:
            string_rules.is_empty(shape)
        except TooManyStates as error:
            self._schemas.not_enforced(place_of(conj, "pattern"), str(error))
            return Text(shape.least, shape.most)
        return shape

    def _object(self, shape: Object, conj: Conj) -> tuple[State, Machine]:
        members = members_of(shape, self._schemas, self.possible, self._noting(conj))
        return machine_of(members, self._member)

    def _noting(self, conj: Conj) -> Callable[[str, str], None]:
        return lambda keyword, why: self._schemas.not_enforced(place_of(conj, keyword), why)

    def _string(self, shape: Text) -> str:
        if self._notation.is_json:
            return string_rules.expression(shape, self._book)
        quote = self._notation.quote
        return f"{self._book.sign(quote)} {string_rules.raw(shape, self._book, quote)}"

    def _member(self, member: Member | Others) -> str:
        if isinstance(member, Member):
            name = quoted(self._notation.name(member.name))
        elif self._notation.bare_names:
            name = "name"
        elif isinstance(member.names, Automaton):
            name = string_rules.by_states(member.names, self._book)
        else:
            name = "string"
        return f'{name} ":"{self._spacing.after_colon} {self.value(member.value)}'

    def _array(self, shape: Array, conj: Conj) -> tuple[State, Machine]:
        if shape.least > MAX_LEAST:
            why = f"an array can be asked for {MAX_LEAST} items, not more"
            raise SchemaRefused(place_of(conj, "minItems"), why)
        values = distinct_values(shape, self._schemas.shapes) if shape.unique else None
        if values is not None:
            said = tuple(map(self._notation.spelled, values))
            return unique_machine(said, shape.least, shape.most)
        if shape.unique and shape.most not in (0, 1):
            why = "uniqueItems is enforced of a few values that are listed"
            self._schemas.not_enforced(place_of(conj, "uniqueItems"), why)
        if num_states(shape) > MAX_ARRAY_STATES:
            why = "it is not enforced of so many items"
            self._schemas.not_enforced(place_of(conj, "contains"), why)
            shape = msgspec.structs.replace(shape, contains=())
        return array_machine(shape, self.possible, self.value)


def _only_denies(node: Node) -> bool:
    """Return whether `node` says what it is not, and so means no kind of what is left."""
    said = (object_of(node.schema) or {}).keys()
    return node.negated or ("not" in said and said <= {"not", "title", "description"})


def place_of(conj: Conj, keyword: str) -> str:
    """Return the pointer of `keyword` in whichever of `conj` has it."""
    for node in conj:
        if keyword in (object_of(node.schema) or {}):
            return f"{node.pointer}/{keyword}"
    return f"{conj[0].pointer}/{keyword}" if conj else keyword


def key_of(shape: Array | Object) -> Hashable:
    """Return what tells `shape` from the others of its schema."""
    if isinstance(shape, Array):
        return shape
    return (*shape.members.items(), shape.required, shape.keyed, shape.others, shape.names,
            shape.says_others, shape.least, shape.most)  # fmt: skip
