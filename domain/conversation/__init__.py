"""Conversation: messages made into what templates take, answers taken apart."""

from mlxbun.domain.conversation.messages import (
    Turn,
    fold_system,
    merge_turns,
    normalise,
    well_formed_json,
)
from mlxbun.domain.conversation.parts import (
    CallArguments,
    CallBegun,
    CallEnded,
    Part,
    PlainText,
    Reasoning,
    Text,
    TextReader,
)
from mlxbun.domain.conversation.values import well_formed

__all__ = [
    "CallArguments",
    "CallBegun",
    "CallEnded",
    "Part",
    "PlainText",
    "Reasoning",
    "Text",
    "TextReader",
    "Turn",
    "fold_system",
    "merge_turns",
    "normalise",
    "well_formed",
    "well_formed_json",
]
