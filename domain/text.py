"""Text and ids: what the server must know of a model's tokenizer, and of the model itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from mlxbun.domain.sampling import TokenId
from mlxbun.domain.sampling_policy import SamplingRequest


class ModelCard(Struct, frozen=True):
    """The served model, in numbers.  `context_window` counts prompt and answer together."""

    id: str
    model_type: str
    context_window: int
    vocab_size: int
    stop_ids: frozenset[TokenId]
    created: int  # seconds since 1970
    defaults: SamplingRequest = SamplingRequest()  # of its generation_config.json


class TokenDecoder(Protocol):
    """Port: one row's ids to text, piece by piece."""

    def add(self, token_id: TokenId) -> str:
        """Return the text that `token_id` completes; "" while a character is incomplete.

        Special tokens give "", unless they were asked for.
        """
        ...

    def flush(self) -> str:
        """Return what was held back, incomplete characters as U+FFFD."""
        ...


class Tokenizer(Protocol):
    """Port: a model's tokenizer and its chat template.  Any thread may call it."""

    def encode(self, text: str, *, add_special: bool) -> list[TokenId]:
        """Return the ids of `text`.  Special tokens spelled in it become their ids.

        `add_special` adds what the model expects around a bare text (such as BOS).
        """
        ...

    def decoder(self, shown: frozenset[str] = frozenset()) -> TokenDecoder:
        """Return a fresh decoder for one row, which spells the special tokens in `shown`."""
        ...

    def token_bytes(self, token_id: TokenId) -> bytes:
        """Return what one token stands for; special tokens as they are spelled."""
        ...

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt of a conversation, ready for the assistant's turn.

        `messages` are normalised (see `conversation`); `arguments` go to the template as they
        are (such as enable_thinking).  Raises Refused, quoting the template, when it refuses.
        """
        ...

    def fill_in_middle(self, prefix: str, suffix: str) -> list[TokenId] | None:
        """Return the ids that ask for the text between; None where the model cannot."""
        ...
