"""The numbers of a shape, as an expression: one of digits, so that no token depends on the next."""

from __future__ import annotations

from fractions import Fraction

from mlxbun.domain.constraint import string_rules
from mlxbun.domain.constraint.multiples import multiples, steps
from mlxbun.domain.constraint.numbers import decimals, fractional, integers
from mlxbun.domain.constraint.patterns import NOTHING, Pattern
from mlxbun.domain.constraint.rule_book import RuleBook
from mlxbun.domain.constraint.shapes import Number

MAX_DIGIT_STATES = 50_000


def is_empty(shape: Number) -> bool:
    """Return whether there is no such number."""
    digits = _digits(shape)
    if not shape.fractional:
        return digits == NOTHING
    return not any(string_rules.automaton_of(digits, MAX_DIGIT_STATES).ends)


def expression(shape: Number, book: RuleBook) -> str:
    """Return the JSON numbers of `shape`."""
    automaton = string_rules.automaton_of(_digits(shape), MAX_DIGIT_STATES)
    return string_rules.raw_rules(automaton, book)


def _digits(shape: Number) -> Pattern:
    numbers = _numbers(shape)
    return fractional(numbers) if shape.fractional else numbers


def _numbers(shape: Number) -> Pattern:
    if shape.multiple is None:
        return integers(shape.bounds) if shape.integer else decimals(shape.bounds)
    multiple = Fraction(shape.multiple)
    if shape.integer or multiple.denominator == 1:
        return multiples(shape.bounds, multiple.numerator)
    return steps(shape.bounds, multiple)
