"""A model without tensors: it says what the prompt tells it to say, a byte a token.

Directives, anywhere in the prompt, the last one winning:

    [say:TEXT]     the answer is TEXT
    [forever]      the answer never ends
    [break row]    the row's prefill breaks
    [break step]   the step that reads the row's third token breaks

Without one the answer is GREETING, in letters that depend on the seed when sampled.
"""

from __future__ import annotations

import re
import time
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, cycle, repeat

import msgspec

from doubles.tokenizer import BOS, EOS, VOCAB_SIZE
from mlxbun.domain import sampling
from mlxbun.domain.blocks import BlockInfo, BlockKey, BlockLost, Cuts, Tensor, spans
from mlxbun.domain.constraint import GrammarStuck, Matcher
from mlxbun.domain.memory import MemoryUse
from mlxbun.domain.sampling import NO_LOGPROBS, RequestId, SamplingParams, TokenId
from mlxbun.domain.steps import RowFailure, StepPlan, StepResult, TokenLogprobs

GREETING = "Hello, wörld 👋, from a model without tensors."
WEIGHTS_BYTES, OTHER_BYTES = 5000, 300  # that are always in use
WHOLE_BYTES = 100  # of a boundary's layers that cannot be cut, where others can
_DIRECTIVE = re.compile(r"\[(say:|forever|break row|break step)(.*?)\]", re.DOTALL)


class Broken(RuntimeError):
    """What a scripted failure raises."""


class Row:
    """One row: its script, and how much of its prompt was prefilled."""

    def __init__(
        self,
        prompt_ids: tuple[TokenId, ...],
        params: SamplingParams,
        num_cached: int = 0,
        num_drawn: int = 0,
        matcher: Matcher | None = None,
    ) -> None:
        self.follower = Follower(matcher) if matcher is not None else None
        asked = prompt_ids[: len(prompt_ids) - num_drawn]
        text = bytes(t for t in asked if t < BOS).decode(errors="replace")
        self.directive, said = (_DIRECTIVE.findall(text) or [("", "")])[-1]
        self.params = params
        self.num_unfilled = len(prompt_ids) - 1 - num_cached
        self.num_drawn = 0
        self._prompt_ids = prompt_ids
        self._drawn: list[TokenId] = []
        self._script = self._tokens(said)
        given = tuple(next(self._script) for _ in range(num_drawn))
        assert given == prompt_ids[len(asked) :], "a row goes on from what it would have drawn"

    def draw(self) -> TokenId:
        self.num_drawn += 1
        token_id = next(self._script)
        if self.follower is not None:
            token_id = self.follower.draw(token_id)
        self._drawn.append(token_id)
        return token_id

    @property
    def processed(self) -> list[TokenId]:
        """The tokens that the row's state is of: the last one drawn was not fed back yet."""
        num_read = len(self._prompt_ids) - 1 - self.num_unfilled
        if not self.num_drawn:
            return list(self._prompt_ids[:num_read])
        return [*self._prompt_ids, *self._drawn[:-1]]

    def logprobs(self, token_id: TokenId) -> TokenLogprobs | None:
        asked = self.params.logprobs
        if asked == NO_LOGPROBS:
            return None
        others = ((TokenId((token_id + i) % 256), -1.0 - i) for i in range(1, asked))
        return TokenLogprobs(-0.5, ((token_id, -0.5), *others)[:asked])

    def _tokens(self, said: str) -> Iterator[TokenId]:
        if self.directive == "forever":
            return map(TokenId, cycle(b"tick "))
        if self.directive != "say:":
            said = GREETING if self.params.greedy else self._babble()
        return chain(map(TokenId, said.encode()), repeat(EOS))

    def _babble(self) -> str:
        draws = (sampling.uniform(self.params.seed, i) for i in range(12))
        return "".join("abcdefghijklmnop"[int(16 * draw)] for draw in draws)


class Follower:
    """Draws what a matcher allows: what the script says, or else the first token allowed."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._words = array("i", [0] * -(-VOCAB_SIZE // 32))
        self.complete = False
        self.stuck: str | None = None
        self._fill()

    def draw(self, wanted: TokenId) -> TokenId:
        if self.complete or self.stuck is not None:
            return wanted
        allowed = [i for i in range(VOCAB_SIZE) if self._words[i // 32] >> i % 32 & 1]
        token_id = wanted if wanted in allowed else TokenId(allowed[0])
        assert self._matcher.accept(token_id)
        self._fill()
        return token_id

    def _fill(self) -> None:
        try:
            self.complete = self._matcher.fill(memoryview(self._words))
        except GrammarStuck as error:
            self.stuck = str(error)


class ScriptedCompute:
    """Port Compute.  A step takes `step_seconds`, a prompt token `prompt_token_seconds`."""

    def __init__(
        self,
        *,
        step_seconds: float = 0.0,
        prompt_token_seconds: float = 0.0,
        cuts: Cuts = "block",
        mixed: bool = False,
    ) -> None:
        assert cuts == "boundary" or not mixed
        self.kept: dict[BlockKey, tuple[TokenId, ...]] = {}
        self.mixed = mixed
        self._boundaries: set[BlockKey] = set()
        self.working_set_bytes = 0
        self._cuts: Cuts = cuts
        self._step_seconds = step_seconds
        self._prompt_token_seconds = prompt_token_seconds
        self._rows: dict[RequestId, Row] = {}
        self._dispatched: deque[StepResult | Broken] = deque()
        self._num_prefilling = 0

    @property
    def max_rows(self) -> int | None:
        return None

    @property
    def runs_apart(self) -> bool:
        return False

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def cuts(self) -> Cuts:
        return self._cuts

    def open_row(
        self,
        request_id: RequestId,
        prompt_ids: tuple[TokenId, ...],
        params: SamplingParams,
        prefix: tuple[BlockKey, ...] = (),
        num_cached: int = 0,
        num_drawn: int = 0,
        matcher: Matcher | None = None,
    ) -> None:
        assert prompt_ids, "a row has at least one prompt token"
        assert request_id not in self._rows
        assert num_cached < len(prompt_ids), "one token at least is computed"
        kept = [self.kept[key] for key in prefix]
        assert [token for ids in kept for token in ids] == list(prompt_ids[:num_cached]), (
            "a row begins with the state of its own tokens"
        )
        if self.mixed and prefix:
            assert self._boundaries.intersection(prefix) == {prefix[-1]}, "a boundary is last"
        self._rows[request_id] = Row(prompt_ids, params, num_cached, num_drawn, matcher)

    def keep(self, request_id: RequestId, blocks: Sequence[BlockInfo]) -> tuple[BlockInfo, ...]:
        row = self._rows.get(request_id)
        if row is None:
            return ()
        done = row.processed
        if self.cuts == "boundary" and blocks[-1].end != len(done):
            return ()
        assert self.cuts == "block" or self.mixed or len(blocks) == 1
        there = [b for b in blocks if b.end <= len(done)]
        return tuple(self._keep(b, tuple(done[b.start : b.end])) for b in there)

    def _keep(self, block: BlockInfo, ids: tuple[TokenId, ...]) -> BlockInfo:
        self.kept[block.key] = ids
        num_bytes = 4 * len(ids)
        if block.kind == "boundary":
            self._boundaries.add(block.key)
            num_bytes += WHOLE_BYTES if self.mixed else 0
        return msgspec.structs.replace(block, num_bytes=num_bytes)

    def snapshot(
        self, request_id: RequestId, start: int, keys: Iterator[BlockKey]
    ) -> tuple[BlockInfo, ...] | None:
        row = self._rows.get(request_id)
        if row is None or not row.num_drawn:
            return None
        done, whole = row.processed, self.cuts == "boundary"
        assert start == 0 or not whole or self.mixed
        parts = spans(start, len(done)) if self.mixed or not whole else []
        made = [BlockInfo(next(keys), None, "block", a, b - a, 0) for a, b in parts]
        if whole:
            first = len(done) if self.mixed else 0
            made.append(BlockInfo(next(keys), None, "boundary", first, len(done) - first, 0))
        return tuple(self._keep(part, tuple(done[part.start : part.end])) for part in made)

    def forget(self, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            self.kept.pop(key, None)
            self._boundaries.discard(key)

    def tensors(self, key: BlockKey) -> Sequence[Tensor]:
        ids = self.kept.get(key)
        if ids is None:
            raise BlockLost("it left RAM")
        return [Tensor("ids", "I32", (len(ids),), array("i", ids).tobytes())]

    def adopt(self, block: BlockInfo, tensors: Sequence[Tensor]) -> BlockInfo:
        ids = array("i", bytes(tensors[0].data))
        return self._keep(block, tuple(map(TokenId, ids)))

    def dispatch(self, plan: StepPlan) -> tuple[RowFailure, ...]:
        assert len(self._dispatched) < 2, "at most two steps wait to be collected"
        failures: list[RowFailure] = []
        self._num_prefilling = 0
        for request_id, num_tokens in plan.prefill:
            row = self._rows[request_id]
            assert 0 < num_tokens <= row.num_unfilled
            row.num_unfilled -= num_tokens
            self._num_prefilling += num_tokens
            if row.directive == "break row":
                failures.append(RowFailure(request_id, "its prefill broke, as it was told to"))
                self.close_row(request_id)
        self._dispatched.append(self._compute(plan))
        return tuple(failures)

    def wait_prefill(self) -> tuple[RowFailure, ...]:
        time.sleep(self._num_prefilling * self._prompt_token_seconds)
        return ()

    def collect(self) -> StepResult:
        time.sleep(self._step_seconds)
        result = self._dispatched.popleft()
        if isinstance(result, Broken):
            raise result
        return result

    def close_row(self, request_id: RequestId) -> None:
        self._rows.pop(request_id, None)

    def memory(self) -> MemoryUse:
        rows = sum(4 * len(row.processed) for row in self._rows.values())
        kept = sum(4 * len(ids) for ids in self.kept.values())
        return MemoryUse(
            active_bytes=OTHER_BYTES + WEIGHTS_BYTES + rows + kept,
            peak_bytes=OTHER_BYTES + WEIGHTS_BYTES + rows + kept,
            working_set_bytes=self.working_set_bytes,
            weights_bytes=WEIGHTS_BYTES,
            live_kv_bytes=rows,
        )

    def reset(self) -> None:
        self._rows.clear()
        self._dispatched.clear()

    def _compute(self, plan: StepPlan) -> StepResult | Broken:
        drawn: list[TokenId] = []
        logprobs: list[TokenLogprobs | None] = []
        request_ids = (*plan.start, *plan.decode)
        for request_id in request_ids:
            row = self._rows[request_id]
            assert row.num_unfilled == 0, "a row starts after its prefill"
            drawn.append(row.draw())
            logprobs.append(row.logprobs(drawn[-1]))
            if row.directive == "break step" and row.num_drawn == 3:
                return Broken("a step broke, as it was told to")
        complete: list[RequestId] = []
        failures: list[RowFailure] = []
        for request_id in request_ids:
            follower = self._rows[request_id].follower
            if follower is not None and follower.complete:
                complete.append(request_id)
            elif follower is not None and follower.stuck is not None:
                failures.append(RowFailure(request_id, follower.stuck))
        return StepResult(
            plan.step,
            request_ids,
            tuple(drawn),
            tuple(logprobs),
            complete=tuple(complete),
            failures=tuple(failures),
        )
