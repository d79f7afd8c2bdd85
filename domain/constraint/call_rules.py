"""The calls of an answer, and the text that may stand before them, as rules."""

from __future__ import annotations

from collections.abc import Sequence

from mlxbun.domain.constraint.rule_book import RuleBook, either
from mlxbun.domain.constraint.string_rules import automaton_of, lacking, raw_rules
from mlxbun.domain.constraint.words import Calls


def call_rules(calls: Calls, contents: Sequence[str], instead: str, book: RuleBook) -> str:
    """Return the expression of an answer; `contents[i]` are the arguments of tag i.

    `instead` is the expression of what may be there instead of calls, "" for nothing.
    """

    def tag(number: int, begin: str) -> str:
        end = calls.tags[number].end
        return " ".join(filter(None, [
            book.sign(begin) if begin else "",
            contents[number],
            book.sign(end) if end else "",
        ]))  # fmt: skip

    last = f" {book.sign(calls.last)}" if calls.last else ""
    more = ""
    if not calls.only_one:
        others = either(tag(n, calls.between + t.begin) for n, t in enumerate(calls.tags))
        again = book.once("another call", lambda: f'"" | ({others}) {again_name()}')
        more = f" {again}"

        def again_name() -> str:
            return again

    def after(given: str) -> str:
        """Return the calls once the text `given` of them was written."""
        begins = [(n, calls.first + t.begin) for n, t in enumerate(calls.tags)]
        firsts = either(tag(n, b.removeprefix(given)) for n, b in begins)
        return f"({firsts}){more}{last}"

    if calls.required:
        return after("")
    if instead:
        return f"({instead} | {after('')})"
    called = book.once("called", lambda: f"{book.sign(calls.trigger)} {after(calls.trigger)}")
    return raw_rules(automaton_of(lacking(calls.trigger)), book, '""', called)
