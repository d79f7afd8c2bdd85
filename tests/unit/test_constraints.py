"""Grammars of one model: compiled off the event loop, once, and kept within a size."""

from __future__ import annotations

import threading

import anyio
import anyio.lowlevel
import pytest

from doubles.grammar import Texts, TextsCompiler
from doubles.tokenizer import EOS, ByteTokenizer
from mlxbun.application.constraints import Constraints
from mlxbun.domain.constraint import Choice, Constraint, Grammar, JsonSchema, Rules
from mlxbun.domain.refusal import Refused

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def constraints(compiler: TextsCompiler, **options: float) -> Constraints:
    return Constraints(compiler, ByteTokenizer().token_bytes, **options)  # type: ignore[arg-type]


def choice(*texts: str) -> Constraint:
    return Constraint(Choice(texts), "guided_choice")


class Slow(TextsCompiler):
    """Compiles when it is told to, and says on which thread it did."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.threads: list[str] = []

    def compile(self, rules: Rules) -> Texts:
        self.threads.append(threading.current_thread().name)
        assert self.go.wait(10)
        return super().compile(rules)


async def test_the_same_constraint_is_compiled_once() -> None:
    compiler = TextsCompiler()
    kept = constraints(compiler)
    one = await kept.compiled(choice("a", "b"))
    other = await kept.compiled(choice("a", "b"))
    assert one is other and len(compiler.compiled) == 1


async def test_many_who_ask_at_once_wait_for_one_and_the_event_loop_goes_on() -> None:
    compiler = Slow()
    kept = constraints(compiler)
    found = list[object]()

    async def ask() -> None:
        found.append((await kept.compiled(choice("a"))).grammar)

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(ask)
        with anyio.fail_after(10):
            while not compiler.threads:
                await anyio.lowlevel.checkpoint()  # the loop turns while somebody compiles
        assert threading.current_thread().name not in compiler.threads
        compiler.go.set()
    assert len(found) == 5 and len(set(map(id, found))) == 1
    assert len(compiler.compiled) == 1


async def test_what_was_not_used_longest_makes_room() -> None:
    compiler = TextsCompiler()
    kept = constraints(compiler, max_bytes=2 * Texts.num_bytes)
    for name in ("a", "b", "a", "c", "a", "b"):
        await kept.compiled(choice(name))
    compiled = [rules.ebnf for rules in compiler.compiled]
    assert compiled == [f'root ::= ("{name}")\n' for name in ("a", "b", "c", "b")]


async def test_one_that_takes_too_long_is_refused_and_kept_when_it_ends() -> None:
    compiler = Slow()
    kept = constraints(compiler, max_seconds=0.01)
    with pytest.raises(Refused) as caught:
        await kept.compiled(choice("a"))
    assert (caught.value.code, caught.value.field) == ("invalid_value", "guided_choice")
    compiler.go.set()
    with anyio.fail_after(10):
        while True:
            try:
                await kept.compiled(choice("a"))
                break
            except Refused:
                await anyio.lowlevel.checkpoint()
    assert len(compiler.compiled) <= 2


async def test_too_many_at_once_are_refused_for_a_while() -> None:
    compiler = Slow()
    kept = constraints(compiler, max_seconds=0.01)
    codes = set[str]()
    for number in range(12):
        with pytest.raises(Refused) as caught:
            await kept.compiled(choice(str(number)))
        codes.add(caught.value.code)
    assert codes == {"invalid_value", "queue_full"}
    compiler.go.set()


async def test_what_cannot_be_compiled_is_refused_with_its_field() -> None:
    kept = constraints(TextsCompiler())
    with pytest.raises(Refused) as caught:
        await kept.compiled(Constraint(Grammar("root ::= malformed"), "guided_grammar"))
    assert (caught.value.code, caught.value.field) == ("invalid_value", "guided_grammar")
    assert "line 1: it is malformed" in caught.value.message


async def test_a_schema_that_is_wrong_is_refused_with_its_pointer() -> None:
    kept = constraints(TextsCompiler())
    wrong = {"properties": {"a": {"type": "text"}}}
    with pytest.raises(Refused) as caught:
        await kept.compiled(Constraint(JsonSchema(wrong), "guided_json"))
    assert caught.value.field == "guided_json/properties/a/type"


async def test_without_the_library_it_is_refused_with_what_to_do() -> None:
    kept = constraints(TextsCompiler(missing=True))
    with pytest.raises(Refused) as caught:
        await kept.compiled(choice("a"))
    assert (caught.value.code, caught.value.field) == ("unsupported", "guided_choice")
    assert "install" in caught.value.message


async def test_rows_know_what_they_keep_to_by_its_digest() -> None:
    kept = constraints(TextsCompiler())
    after = Constraint(Choice(("a",)), "guided_choice", "</think>")
    rows = [
        kept.row_grammar(c, await kept.compiled(c), frozenset({EOS})) for c in (choice("a"), after)
    ]
    assert [row.digest for row in rows] == [choice("a").digest, after.digest]
    assert rows[0].digest != rows[1].digest
