"""From a constraint to the rules of a grammar: pure, and as slow as a schema is large.

Worker threads call it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from msgspec import Struct

from mlxbun.domain.constraint import json_rules
from mlxbun.domain.constraint.call_rules import call_rules
from mlxbun.domain.constraint.expressions import BadPattern, parse
from mlxbun.domain.constraint.json_rules import JsonRules
from mlxbun.domain.constraint.notations import NOTATIONS
from mlxbun.domain.constraint.rule_book import GrammarTooLarge, RuleBook, either, quoted
from mlxbun.domain.constraint.schema_keywords import SchemaRefused
from mlxbun.domain.constraint.schemas import Schemas, Strictness
from mlxbun.domain.constraint.string_rules import automaton_of, raw_rules
from mlxbun.domain.constraint.words import (
    Calls,
    Choice,
    Constraint,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Tag,
)
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import TokenId

MAX_CHOICES = 10_000
MAX_REGEX_STATES = 2_000
# What may stand between the end of reasoning and the answer.
_LEAD = r"[ \n\r\t]{0,3}"


class Rules(Struct, frozen=True):
    """A grammar in EBNF, and the name of its first rule."""

    ebnf: str
    root: str = "root"


class Translation(Struct, frozen=True):
    """`unenforced` are JSON pointers of keywords that the rules do not keep to."""

    rules: Rules
    unenforced: tuple[str, ...] = ()


def translate(constraint: Constraint, special: Mapping[str, TokenId] | None = None) -> Translation:
    """Return the rules of `constraint`.  Raises Refused, naming the part that is at fault.

    `special` are the spellings of special tokens, with which a model may write its calls.
    """
    lead = f"{_LEAD} " if constraint.after is not None else ""
    field = constraint.field
    match constraint.wanted:
        case JsonObject() | JsonSchema():
            book = RuleBook(json_rules.COMMON)
            with _refusing(field):
                root, unenforced = _json(constraint.wanted, book)
                return Translation(Rules(book.text(lead + root)), tuple(unenforced))
        case Regex(pattern=pattern):
            return Translation(_regex(pattern, field, lead))
        case Grammar(ebnf=ebnf):
            return Translation(_grammar(ebnf, field, lead))
        case Choice(texts=texts):
            return Translation(_choice(texts, field, lead))
        case Calls():
            return _calls(constraint.wanted, field, lead, special or {})


def _json(wanted: JsonObject | JsonSchema, book: RuleBook) -> tuple[str, dict[str, None]]:
    """Return the rule of a value, and a list of what is not enforced that is still growing."""
    if isinstance(wanted, JsonObject):
        wanted = JsonSchema({"type": "object"})
    schemas = Schemas(wanted.schema, Strictness.STRICT if wanted.strict else Strictness.USUAL)
    rules = JsonRules(schemas, book, compact=wanted.compact)
    if not rules.possible(schemas.root()):
        raise SchemaRefused("", "no value satisfies it")
    return rules.value(schemas.root()), schemas.unenforced


@contextmanager
def _refusing(field: str) -> Generator[None]:
    """Turn what reading a schema raises into a refusal of `field`."""
    try:
        yield
    except SchemaRefused as refused:
        at = f"{field}{refused.pointer}"
        raise Refused("invalid_value", f"{at}: {refused.why}", at) from None
    except GrammarTooLarge as error:
        raise Refused("invalid_value", f"{field}: {error}", field) from None
    except RecursionError:
        raise Refused("invalid_value", f"{field} nests too deeply", field) from None


def _calls(calls: Calls, field: str, lead: str, special: Mapping[str, TokenId]) -> Translation:
    """Return the rules of calls, and of what may stand before them or instead."""
    book = RuleBook(json_rules.COMMON, special)
    notes: list[tuple[str, dict[str, None]]] = []
    contents: list[str] = []
    for number, tag in enumerate(calls.tags):
        with _refusing(tag.field or field):
            schemas, rules = _arguments(tag, calls, book, number)
            contents.append(rules.arguments())
            book.text("")  # so that what is refused is refused under its own field
            notes.append((tag.field, schemas.unenforced))
    with _refusing(field):
        instead = ""
        if calls.otherwise is not None:
            instead, unenforced = _json(calls.otherwise, book)
            notes.append(("", unenforced))
            if calls.before_otherwise:
                instead = f"{book.sign(calls.before_otherwise)} {instead}"
        root = call_rules(calls, contents, instead, book)
        text = book.text(lead + root if calls.required or instead else root)
    said = (of + pointer.replace("/allOf/0", "", 1) for of, found in notes for pointer in found)
    return Translation(Rules(text), tuple(said))


def _arguments(tag: Tag, calls: Calls, book: RuleBook, number: int) -> tuple[Schemas, JsonRules]:
    """Return a call's arguments: an object of its schema, or any where there is none of it."""
    schemas = Schemas({"allOf": [tag.schema, {"type": "object"}]}, Strictness.LENIENT)
    notation = NOTATIONS[calls.style]
    rules = JsonRules(schemas, book, compact=False, notation=notation, scope=number + 1)
    if rules.possible(schemas.root()):
        return schemas, rules
    schemas = Schemas({"type": "object"}, Strictness.LENIENT)
    schemas.unenforced[""] = None
    return schemas, JsonRules(schemas, book, compact=False, notation=notation, scope=-number - 1)


def _regex(source: str, field: str, lead: str) -> Rules:
    try:
        automaton = automaton_of(parse(source, search=False), MAX_REGEX_STATES)
        if not any(automaton.ends):
            raise BadPattern("it matches no text")
        book = RuleBook({})
        return Rules(book.text(lead + raw_rules(automaton, book)))
    except ValueError as bad:
        raise Refused("invalid_value", f"{field}: {bad}", field) from None
    except RecursionError:
        raise Refused("invalid_value", f"{field} nests too deeply", field) from None


def _grammar(ebnf: str, field: str, lead: str) -> Rules:
    if "root" not in ebnf:
        raise Refused("invalid_value", f"{field} has no rule that is named root", field)
    if not lead:
        return Rules(ebnf)
    return Rules(f"{ebnf}\nafter_reasoning ::= {lead}root\n", "after_reasoning")


def _choice(texts: tuple[str, ...], field: str, lead: str) -> Rules:
    if not texts or len(texts) > MAX_CHOICES:
        message = f"{field} has {len(texts)} texts; 1 to {MAX_CHOICES} can be chosen from"
        raise Refused("invalid_value", message, field)
    return Rules(RuleBook({}).text(f"{lead}({either(map(quoted, texts))})"))
