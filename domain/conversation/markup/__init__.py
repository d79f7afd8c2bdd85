"""Markup: what models write around thoughts and calls, read incrementally, family by family."""

from mlxbun.domain.conversation.markup.call_tags import CallTag, CallTags, call_tags
from mlxbun.domain.conversation.markup.families import Family, family_of

__all__ = ["CallTag", "CallTags", "Family", "call_tags", "family_of"]
