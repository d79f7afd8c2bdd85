"""Encoding: texts to ids, and how many of them a model has room for.

A text far beyond the window is refused before it costs its size.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlxbun.application.service import Model
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import TokenId
from mlxbun.domain.text import ModelCard, Tokenizer

SLICE_CHARS = 1 << 18


def encoded(
    model: Model, text: str, *, add_special: bool, field: str = "messages", num_windows: int = 1
) -> list[TokenId]:
    """Encode `text`, which stands in `field`.

    One far beyond `num_windows` times the window is refused before it costs its size.
    """
    if len(text) > 2 * SLICE_CHARS:
        _check_length(model, text, num_windows, field)
    return model.tokenizer.encode(text, add_special=add_special)


def prompt_ids(
    model: Model, prompt: str | Sequence[int], index: int, suffix: str | None
) -> list[TokenId]:
    """Return the ids of a bare prompt, the request's `index`th; ids are taken as they are.

    Raises Refused with `prompt[i]` or `suffix`.
    """
    if isinstance(prompt, str):
        if not suffix:
            return encoded(model, prompt, add_special=True, field="prompt")
        ids = model.tokenizer.fill_in_middle(prompt, suffix)
        if ids is None:
            message = "this model cannot fill in the middle: leave suffix out"
            raise Refused("unsupported", message, "suffix")
        return ids
    field = f"prompt[{index}]"
    if suffix:
        raise Refused("unsupported", "suffix needs a prompt of text, not of token ids", "suffix")
    if not prompt:
        raise Refused("invalid_value", f"{field} has no tokens", field)
    vocab_size = model.card.vocab_size
    bad = next((i for i, token_id in enumerate(prompt) if not 0 <= token_id < vocab_size), None)
    if bad is not None:
        message = f"{prompt[bad]} is not a token id; the vocabulary has {vocab_size} tokens"
        raise Refused("invalid_value", message, f"{field}[{bad}]")
    return list(map(TokenId, prompt))


def _check_length(model: Model, text: str, num_windows: int, field: str) -> None:
    window = model.card.context_window
    num_tokens = tokens_at_least(model.tokenizer, text, num_windows * window)
    if num_tokens > num_windows * window:
        raise _too_long(window, num_tokens, field)


def tokens_at_least(tokenizer: Tokenizer, text: str, enough: int) -> int:
    """Return a count of tokens that `text` surely has; counting ends above `enough`."""
    num_tokens = 0
    for at in range(0, len(text), SLICE_CHARS):
        # A cut may split words, which costs a few tokens more than the whole text has.
        num_tokens += len(tokenizer.encode(text[at : at + SLICE_CHARS], add_special=False)) - 16
        if num_tokens > enough:
            break
    return num_tokens


def nothing_ids(card: ModelCard, field: str) -> tuple[TokenId, ...]:
    """Return the prompt for an empty text: the end of a text before it."""
    if not card.stop_ids:
        raise Refused("invalid_value", "the prompt is empty, and this model needs a token", field)
    return (min(card.stop_ids),)


def room_left(card: ModelCard, num_prompt_tokens: int, field: str) -> int:
    """Return how many tokens an answer may have.  Raises Refused if there is none for it."""
    room = card.context_window - num_prompt_tokens
    if room < 1:
        raise _too_long(card.context_window, num_prompt_tokens, field)
    return room


def _too_long(window: int, num_tokens: int, field: str) -> Refused:
    """Return the refusal of a prompt of at least `num_tokens`, in the words that clients look for.

    Anthropic's read both numbers, to know how much to leave out; one token is for the answer.
    """
    return Refused(
        "context_length_exceeded",
        f"prompt is too long: {num_tokens} tokens > {window - 1} maximum; this model's maximum "
        f"context length is {window} tokens, prompt and answer together",
        field,
    )
