"""Prompts of a wanted length in tokens, each unlike all others, for any server.

The tokenizer is not needed: two small requests tell how many tokens a word costs.  The first
words differ from prompt to prompt, so no prefix cache shortens the work by much.  Prompts are
sentences, since a model that reads gibberish is unsure of everything it says.
"""

from __future__ import annotations

import random
from typing import Protocol

from mlxbun.adapters.bench.client import Client
from mlxbun.adapters.bench.generation import generate

_COMMON_NOUNS = (
    "time year people way day man thing woman life child world school state family student "
    "group country problem hand part place case week company system program question work "
    "number night point home water room mother area money story fact month lot right study "
    "book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city name team minute idea body back parent face others "
    "level office door health person art war history party result change morning reason"
)
WORDS = _COMMON_NOUNS.split()
SENTENCES = (
    "The {} of the {} was known to every {} in town.",
    "A {} can change the {} of a whole {}.",
    "Nobody knew why the {} had left the {} before the {}.",
    "Tell me about the {} and the {} that it brings to a {}.",
    "Explain in simple words how a {} and a {} make a {}.",
)
PROBE_WORDS = (16, 80)


class Shape(Protocol):
    """What a probe needs of a request's shape."""

    @property
    def path(self) -> str: ...

    def payload(self, prompt: str, seed: int) -> dict[str, object]: ...


class Prompts:
    """Makes prompts of `num_words` words; the same `seed` gives the same sequence."""

    def __init__(self, num_words: int, seed: int = 0) -> None:
        self.num_words = num_words
        self._random = random.Random(seed)

    def next(self) -> str:
        """Return a prompt that was not there before."""
        chance, words = self._random, list[str]()
        words += chance.choice(WORDS).capitalize(), "and", f"{chance.choice(WORDS)}:"
        while len(words) < self.num_words:
            words += chance.choice(SENTENCES).format(*chance.choices(WORDS, k=3)).split()
        return " ".join(words[: self.num_words])


class CannotProbe(RuntimeError):
    """The server did not answer the small requests that find a prompt's length."""


async def words_for(client: Client, shape: Shape, num_tokens: int) -> int:
    """Return how many words make a prompt of about `num_tokens` tokens.

    Raises CannotProbe with what the server said.
    """
    counted: list[int] = []
    for num_words in PROBE_WORDS:
        payload = {**shape.payload(Prompts(num_words, num_words).next(), 0), "max_tokens": 1}
        answer = await generate(client, shape.path, payload)
        if answer.error:
            raise CannotProbe(answer.error)
        counted.append(answer.prompt_tokens)
    return fitted_words(PROBE_WORDS, (counted[0], counted[1]), num_tokens)


def fitted_words(words: tuple[int, int], tokens: tuple[int, int], num_tokens: int) -> int:
    """Return the words that make `num_tokens`, from the tokens that two prompts had."""
    tokens_per_word = (tokens[1] - tokens[0]) / (words[1] - words[0])
    if tokens_per_word <= 0:
        raise CannotProbe(f"{words} words were {tokens} tokens; a longer prompt must have more")
    fixed = tokens[0] - tokens_per_word * words[0]
    return max(1, round((num_tokens - fixed) / tokens_per_word))
