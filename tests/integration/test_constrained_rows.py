"""Rows that keep to a grammar, in one batch with rows that do not, through the real engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec import Struct

import engine_driver
import random_schemas
from mlxbun.adapters.grammar.compiler import Vocabulary, XGrammarCompiler
from mlxbun.adapters.journal import RingJournal
from mlxbun.adapters.mlx_compute.opening import leave_thread
from mlxbun.adapters.tokenizer.folder import FolderTokenizer, open_tokenizer
from mlxbun.application.engine import Engine
from mlxbun.application.requests import Drawn, Ended, Outbox, RequestSpec
from mlxbun.domain.constraint import (
    Choice,
    Constraint,
    JsonSchema,
    Regex,
    RowGrammar,
    Wanted,
    translate,
)
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId
from mlxbun.domain.scheduling import Limits
from mlxbun.domain.steps import Compute
from models import tiny

NUM_SCHEMAS = 500
GREEDY = SamplingParams(temperature=0.0)
END = TokenId(tiny.TOKEN_IDS["<|im_end|>"])
PROMPT = (TokenId(40), TokenId(41), TokenId(42))


class Answer(Struct, frozen=True):
    token_ids: tuple[TokenId, ...]
    reason: str


class Ask(Struct, frozen=True):
    wanted: Wanted | None
    params: SamplingParams = GREEDY
    max_tokens: int = 400
    stop_ids: frozenset[TokenId] = frozenset({END})
    after: str | None = None


class Server:
    """An engine, and what compiles for its model."""

    def __init__(self, opener: Callable[[], Compute], tokenizer: FolderTokenizer) -> None:
        self._tokenizer = tokenizer
        tokens = tokenizer.vocabulary(tiny.VOCAB_SIZE)
        assert tokens is not None
        self.tokens = tokens
        vocabulary = Vocabulary(tokens, tiny.VOCAB_SIZE, {END}, tokenizer.special_tokens())
        self._compiler = XGrammarCompiler(lambda: vocabulary)
        self._arrived = threading.Condition()
        self._count = 0
        self._engine = Engine(
            opener, Limits(max_rows=4), RingJournal(10), leave_thread=leave_thread
        )
        self.failures: list[Exception] = []
        self._engine.start(self._tell, lambda: None, self.failures.append)

    def stop(self) -> None:
        self._engine.stop()
        assert not self.failures

    def grammar(self, ask: Ask) -> RowGrammar | None:
        if ask.wanted is None:
            return None
        constraint = Constraint(ask.wanted, "x", ask.after)
        compiled = self._compiler.compile(translate(constraint, self._compiler.special).rules)
        stops = ask.stop_ids
        return RowGrammar(
            constraint.digest, compiled, ask.after, stops, self._tokenizer.token_bytes
        )

    def answers(self, asks: Sequence[Ask]) -> list[Answer]:
        """Run `asks` together; return what each drew."""
        inboxes = [engine_driver.Inbox(self._arrived) for _ in asks]
        specs: list[RequestSpec] = []
        for ask in asks:
            self._count += 1
            specs.append(
                RequestSpec(
                    RequestId(f"request-{self._count}"),
                    PROMPT,
                    ask.max_tokens,
                    ask.stop_ids,
                    ask.params,
                    grammar=self.grammar(ask),
                )
            )
        for spec, inbox in zip(specs, inboxes, strict=True):
            self._engine.submit(spec, inbox)
        with self._arrived:
            assert self._arrived.wait_for(lambda: all(i.ended for i in inboxes), 60)
        found: list[Answer] = []
        for inbox in inboxes:
            ids = [item.token_id for item in inbox.items if isinstance(item, Drawn)]
            end = inbox.items[-1]
            assert isinstance(end, Ended)
            found.append(Answer(tuple(ids), end.reason))
        return found

    def text(self, answer: Answer) -> str:
        return b"".join(self.tokens[i] for i in answer.token_ids if i != END).decode(
            errors="replace"
        )

    def _tell(self, outbox: Outbox) -> None:
        for mailbox, item in outbox.items:
            mailbox.put(item)


# Layouts: slots, rows apart, recurrent layers.
@pytest.fixture(scope="module", params=["tiny-llama", "tiny-gemma3", "tiny-qwen3-5"])
def server(
    request: pytest.FixtureRequest, tiny_model: Callable[[str], Path], load: Callable[[str], Any]
) -> Any:
    made = Server(
        engine_driver.open_compute(load(request.param), l1=False),
        open_tokenizer(tiny_model(request.param)),
    )
    yield made
    made.stop()


@pytest.fixture(scope="module")
def llama(tiny_model: Callable[[str], Path], load: Callable[[str], Any]) -> Any:
    made = Server(
        engine_driver.open_compute(load("tiny-llama"), l1=False),
        open_tokenizer(tiny_model("tiny-llama")),
    )
    yield made
    made.stop()


def hurried(server: Server, seed: int) -> SamplingParams:
    """Return a policy under which a model of noise comes to an end."""
    closing = [
        i
        for i, token in enumerate(server.tokens)
        if token[:1] in (b'"', b"}", b"]") or token in (b'",', b'":')
    ]
    bias = tuple((TokenId(i), 8.0) for i in closing)
    return SamplingParams(temperature=1.0, top_p=0.95, seed=seed, logit_bias=bias)


@pytest.mark.parametrize("first", range(0, NUM_SCHEMAS, 100))
def test_answers_to_different_schemas_in_one_batch_are_all_valid(llama: Server, first: int) -> None:
    batch: list[tuple[Any, Ask]] = []
    num_whole = 0
    for seed in range(first, first + 100):
        schema = random_schemas.schema(seed)
        try:
            translate(Constraint(JsonSchema(schema), "x"))
        except Refused as refused:
            assert "no value satisfies it" in refused.message
            schema = {"type": "integer"}
        batch.append((schema, Ask(JsonSchema(schema), hurried(llama, seed))))
        if len(batch) < 4:
            continue
        answers = llama.answers([ask for _, ask in batch])
        for (schema, _), answer in zip(batch, answers, strict=True):
            if answer.reason == "length":
                continue  # a string that the noise did not end
            num_whole += 1
            value = json.loads(llama.text(answer))
            assert jsonschema.Draft202012Validator(schema).is_valid(value), (schema, value)
        batch.clear()
    assert num_whole >= 90


def test_rows_without_a_grammar_draw_what_they_drew_alone(server: Server) -> None:
    free = [
        Ask(None, GREEDY, 40, frozenset()),
        Ask(None, SamplingParams(temperature=1.0, seed=3), 40, frozenset()),
        Ask(None, SamplingParams(temperature=0.8, top_p=0.9, seed=4), 40, frozenset()),
    ]
    alone = [server.answers([ask])[0] for ask in free]
    bound = Ask(JsonSchema({"type": "object"}), SamplingParams(temperature=1.0, seed=1), 40)
    together = server.answers([*free, bound])
    assert together[:3] == alone


def test_a_row_with_a_grammar_draws_what_it_drew_alone(server: Server) -> None:
    bound = [
        Ask(Regex("[a-z ]{30,60}"), GREEDY),
        Ask(JsonSchema({"type": "array", "items": {"type": "integer"}, "minItems": 4}),
            SamplingParams(temperature=1.0, seed=7)),
        Ask(Choice(("port", "starboard")), SamplingParams(temperature=1.0, top_k=5, seed=9)),
    ]  # fmt: skip
    alone = [server.answers([ask])[0] for ask in bound]
    together = server.answers([*bound, Ask(None, GREEDY, 50, frozenset())])
    assert together[:3] == alone
    said = server.text(together[0])
    assert 30 <= len(said) <= 60 and set(said) <= set("abcdefghijklmnopqrstuvwxyz ")


def test_an_answer_that_is_complete_ends_without_another_token(server: Server) -> None:
    answer = server.answers([Ask(Choice(("ahoy",)))])[0]
    assert (server.text(answer), answer.reason) == ("ahoy", "stop")
    assert END not in answer.token_ids


def test_an_answer_may_end_where_it_may_go_on(server: Server) -> None:
    one_or_more = Ask(Regex("a+"), SamplingParams(logit_bias=((END, 50.0),), temperature=0.0))
    answer = server.answers([one_or_more])[0]
    assert (server.text(answer), answer.reason) == ("a", "stop") and answer.token_ids[-1] == END


def test_an_answer_that_may_not_end_ends_by_its_length(server: Server) -> None:
    answer = server.answers([Ask(Regex("[ab]{60}"), GREEDY, 9)])[0]
    assert answer.reason == "length" and len(answer.token_ids) == 9


def test_a_bias_cannot_make_a_row_say_what_is_not_allowed(server: Server) -> None:
    wanted = Choice(("yes", "no"))
    bias = tuple((TokenId(i), 100.0) for i, t in enumerate(server.tokens) if t[:1] == b"x")
    answer = server.answers([Ask(wanted, SamplingParams(temperature=0.0, logit_bias=bias))])[0]
    assert server.text(answer) in wanted.texts


def test_a_grammar_begins_after_its_marker(server: Server) -> None:
    """Whatever the row says first, once it says the marker it keeps to the grammar."""
    close = TokenId(tiny.TOKEN_IDS["</think>"])
    params = SamplingParams(temperature=1.0, seed=5, logit_bias=((close, 4.0),))
    answer = server.answers([Ask(Choice(("yes", "no")), params, after="</think>")])[0]
    _, marker, said = server.text(answer).partition("</think>")
    assert marker and said.strip() in ("yes", "no") and answer.reason == "stop"


def test_rows_come_and_go_while_others_keep_to_theirs(llama: Server) -> None:
    """More rows than there is room for, of unlike lengths: slots change hands."""
    asks = [Ask(Regex(f"{letter}{{{n}}}")) for n, letter in enumerate("abcdefghijkl", start=1)]
    said = [llama.text(answer) for answer in llama.answers(asks)]
    assert said == [letter * n for n, letter in enumerate("abcdefghijkl", start=1)]
