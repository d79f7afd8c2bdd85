"""Constraint: what a response must look like: a schema, an expression, a grammar, a choice, calls.

Honoured, or refused with the reason, or honoured in part and said so.  What was asked becomes the
rules of a grammar here; what compiles those and follows a row stands behind ports.
"""

from __future__ import annotations

from mlxbun.domain.constraint.hints import hint_of
from mlxbun.domain.constraint.matching import (
    CompiledGrammar,
    GrammarCompiler,
    GrammarStuck,
    GrammarUnavailable,
    Matcher,
    MatcherAfter,
    RowGrammar,
)
from mlxbun.domain.constraint.translation import (
    Rules,
    Translation,
    translate,
)
from mlxbun.domain.constraint.wire import constraint_of, format_of
from mlxbun.domain.constraint.words import (
    Calls,
    Choice,
    Constraint,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Style,
    Tag,
    Wanted,
)

__all__ = [
    "Calls",
    "Choice",
    "CompiledGrammar",
    "Constraint",
    "Grammar",
    "GrammarCompiler",
    "GrammarStuck",
    "GrammarUnavailable",
    "JsonObject",
    "JsonSchema",
    "Matcher",
    "MatcherAfter",
    "Regex",
    "RowGrammar",
    "Rules",
    "Style",
    "Tag",
    "Translation",
    "Wanted",
    "constraint_of",
    "format_of",
    "hint_of",
    "translate",
]
