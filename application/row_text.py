"""The text of one row: its tokens decoded, read, cut at stop strings, and given out in pieces.

No I/O and no waiting: tokens in, pieces out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from mlxbun.application.requests import Drawn, Ended, RequestSpec
from mlxbun.domain.conversation import CallEnded, Part, Reasoning, Text, TextReader
from mlxbun.domain.sampling import FinishReason, TokenId
from mlxbun.domain.steps import TokenLogprobs
from mlxbun.domain.stop_strings import StopStrings
from mlxbun.domain.text import TokenDecoder

LikelyToken = tuple[TokenId, TokenLogprobs | None]


class Untold(Struct):
    """A token with log-probabilities that may yet turn out to be part of a stop string.

    It completed `num_chars` characters.  `spoken` says whether they are visible text.
    """

    token: LikelyToken
    num_chars: int
    spoken: bool = False


class Piece(Struct, frozen=True):
    """What one or more tokens of row `row` brought.  `finish` is set on a row's last piece.

    `tokens` are those drawn, the end token too; `parts` only what may be shown now.  The stop
    string that ended the row is `stopped_by`.  `finish` is tool_calls for a row that ended by
    itself with at least one complete call.

    Where log-probabilities were asked for, a token comes with the last of its text, and one of
    which nothing is shown, since a stop string has it, not at all; of the last one's text the
    last `num_cut` characters are not shown.  `spoken` are those of `tokens` that visible text is
    made of, without markup and thoughts.
    """

    row: int
    parts: tuple[Part, ...]
    tokens: tuple[LikelyToken, ...]
    finish: FinishReason | Literal["tool_calls"] | None = None
    stopped_by: str | None = None
    spoken: tuple[LikelyToken, ...] = ()
    num_cut: int = 0

    @property
    def text(self) -> str:
        """The visible text alone."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))


class Row:
    """One row's text side: its decoder, its reader, its stop strings, its count."""

    def __init__(
        self,
        index: int,
        spec: RequestSpec,
        stop: Sequence[str],
        decoder: TokenDecoder,
        reader: TextReader,
    ):
        self.index = index
        self.spec = spec
        self.num_tokens = 0
        self.num_cached = 0  # tokens of the prompt whose state was there
        self.num_replayed = 0  # tokens that an earlier attempt drew
        self.num_calls = 0  # complete ones
        self.num_reasoning = 0  # tokens in which it thinks
        self.said: list[TokenId] = []  # its end token left out
        self.whole = False  # it ended by itself, and nothing of it was cut off
        self.full = False  # all that may be shown was: what it would still say is not waited for
        self.ended = False
        self.accepted = False
        self._stops = StopStrings(tuple(stop))
        self._decoder = decoder
        self._reader = reader
        self._num_unread = 0  # tokens since the last that brought a part
        self._speaks = True
        self._untold: list[Untold] = []
        self._num_undecided = 0  # the newest of them, of which the reader said nothing yet
        self._num_cut = 0

    def read(self, items: Sequence[Drawn | Ended]) -> Piece:
        """Turn what arrived into one piece.  Raises the Refused of a row that broke."""
        parts: list[Part] = []
        tokens: list[LikelyToken] = []
        finish: FinishReason | None = None
        for item in items:
            if isinstance(item, Drawn):
                self.num_tokens += 1
                if item.token_id in self.spec.stop_ids:
                    tokens.append((item.token_id, item.logprobs))
                    continue
                self.said.append(item.token_id)
                text = self._decoder.add(item.token_id)
                read = self._reader.feed(text)
                self._num_unread += 1
                if read:
                    if Reasoning in map(type, read):  # `any` costs more than all the rest
                        self.num_reasoning += self._num_unread
                    self._num_unread = 0
                if item.logprobs is None:
                    tokens.append((item.token_id, None))
                else:
                    self._untold.append(Untold((item.token_id, item.logprobs), len(text)))
                    self._hear(read)
                stopped_by = self._show(read, parts)
                if stopped_by is not None:
                    return self._last(parts, tokens, "stop", stopped_by)
                if self._reader.done:
                    self.full = True
                    return self._last(parts, tokens, "stop", None)
            elif item.refusal is not None:
                self.ended = True
                raise item.refusal
            else:
                finish = item.reason  # type: ignore[assignment]  # the engine's own: stop or length
        if finish is None:
            if not self._untold:
                return Piece(self.index, tuple(parts), tuple(tokens))
            told, spoken = self._tell(len(self._untold) - self._num_untellable())
            return Piece(self.index, tuple(parts), (*tokens, *told), spoken=spoken)
        text = self._decoder.flush()
        if self._untold:
            self._untold[-1].num_chars += len(text)
        read = (*self._reader.feed(text), *self._reader.flush(cut=finish == "length"))
        stopped_by = self._show(read, parts)
        if stopped_by is not None:
            return self._last(parts, tokens, "stop", stopped_by)
        if held := self._stops.flush():
            parts.append(Text(held))
        return self._last(parts, tokens, finish, None)

    def _show(self, read: Sequence[Part], parts: list[Part]) -> str | None:
        """Add what may be shown of `read` to `parts`; return the stop string that ends the row.

        Stop strings are looked for in visible text.  What else comes ends a run of it.
        """
        for i, part in enumerate(read):
            if isinstance(part, Text):
                num_held = self._stops.num_held
                shown, stopped_by = self._stops.feed(part.text)
                if shown:
                    parts.append(Text(shown))
                if stopped_by is not None:
                    if self._untold:
                        later = (*read[i + 1 :], *self._reader.flush(cut=True))
                        num_hidden = num_held + len(part.text) - len(shown)
                        self._cut(
                            num_hidden + sum(len(p.text) for p in later if isinstance(p, Text))
                        )
                    return stopped_by
                continue
            if held := self._stops.flush():
                parts.append(Text(held))
            parts.append(part)
            self.num_calls += isinstance(part, CallEnded)
        return None

    def _last(
        self,
        parts: list[Part],
        tokens: list[LikelyToken],
        finish: FinishReason,
        stopped_by: str | None,
    ) -> Piece:
        self.ended = True
        self.whole = stopped_by is None and not self.full
        said = "tool_calls" if self.num_calls and finish == "stop" and not stopped_by else finish
        if self._speaks and self._num_undecided:
            for untold in self._untold[-self._num_undecided :]:
                untold.spoken = True
        told, spoken = self._tell(len(self._untold))
        every = (*tokens, *told)
        return Piece(self.index, tuple(parts), every, said, stopped_by, spoken, self._num_cut)

    def _hear(self, read: Sequence[Part]) -> None:
        """Note whether the newest tokens are text, which `read` says, the last one's."""
        self._num_undecided += 1
        if not read:
            return
        if any(isinstance(part, Text) for part in read):
            # After thoughts or a call, what was held back is their markup.
            for untold in self._untold[-self._num_undecided if self._speaks else -1 :]:
                untold.spoken = True
        self._num_undecided = 0
        self._speaks = isinstance(read[-1], Text)

    def _num_untellable(self) -> int:
        """Return how many of the newest tokens may be part of a stop string."""
        number, num_held = self._num_undecided, self._stops.num_held
        while num_held > 0 and number < len(self._untold):
            number += 1
            num_held -= self._untold[-number].num_chars
        while 0 < number < len(self._untold) and not self._untold[-number - 1].num_chars:
            number += 1  # it begins a character that another completes
        return number

    def _cut(self, num_chars: int) -> None:
        """Forget the tokens whose text is within the last `num_chars`, which are not shown."""
        untold = self._untold
        while untold and untold[-1].num_chars <= num_chars:
            num_chars -= untold.pop().num_chars
        self._num_undecided = 0
        self._num_cut = num_chars if untold else 0

    def _tell(self, number: int) -> tuple[tuple[LikelyToken, ...], tuple[LikelyToken, ...]]:
        """Return the oldest tokens that were not told, and those of them that are spoken."""
        told = self._untold[:number]
        del self._untold[:number]
        return tuple(t.token for t in told), tuple(t.token for t in told if t.spoken)
