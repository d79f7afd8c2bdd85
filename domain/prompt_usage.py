"""Prompt usage: the tokens of a prompt by what they cost, as the Messages API counts them."""

from __future__ import annotations

from msgspec import Struct


class PromptUsage(Struct, frozen=True):
    """The Messages API's three counts: they sum to the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int


def prompt_usage(num_prompt_tokens: int, num_reused: int, num_published: int = 0) -> PromptUsage:
    """Split a prompt into what the cache had, what it took in, and what was neither.

    `num_published` tokens of the prompt were new to the cache.
    """
    read = min(max(num_reused, 0), num_prompt_tokens)
    created = min(max(num_published, 0), num_prompt_tokens - read)
    return PromptUsage(num_prompt_tokens - read - created, created, read)
