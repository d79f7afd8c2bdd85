"""Fill in the middle: how families of code models are asked for the text between two texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from mlxbun.domain.sampling import TokenId


class Markers(Struct, frozen=True):
    """A family's tokens, and whether it was taught to read the prefix or the suffix first."""

    prefix: str
    suffix: str
    middle: str | None
    first: Literal["prefix", "suffix"] = "prefix"


# Source: the model cards and tokenizers of the families.
FAMILIES = (
    Markers("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    Markers("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    Markers("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    Markers("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    Markers("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    Markers("<PRE>", "<SUF>", "<MID>"),
    Markers("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # CodeGeeX
    Markers("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", first="suffix"),  # Seed Coder
    Markers("[PREFIX]", "[SUFFIX]", None, first="suffix"),  # Codestral
)


class FillInMiddle:
    """The prompt of one family, by ids."""

    def __init__(self, markers: Markers, token_id: Callable[[str], TokenId | None]) -> None:
        self._markers = markers
        self._ids = {
            marker: found
            for marker in (markers.prefix, markers.suffix, markers.middle)
            if marker is not None and (found := token_id(marker)) is not None
        }

    @property
    def complete(self) -> bool:
        """Whether the vocabulary has all of the family's tokens."""
        return len(self._ids) == 3 - (self._markers.middle is None)

    def prompt(self, prefix: list[TokenId], suffix: list[TokenId]) -> list[TokenId]:
        before = [self._ids[self._markers.prefix], *prefix]
        after = [self._ids[self._markers.suffix], *suffix]
        middle = [] if self._markers.middle is None else [self._ids[self._markers.middle]]
        if self._markers.first == "prefix":
            return [*before, *after, *middle]
        return [*after, *before, *middle]


def fill_in_middle(token_id: Callable[[str], TokenId | None]) -> FillInMiddle | None:
    """Return the family whose tokens the vocabulary has; None where there is none."""
    families = (FillInMiddle(markers, token_id) for markers in FAMILIES)
    return next((family for family in families if family.complete), None)
