"""The command line in this process, over a scripted model."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from array import array
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import anyio.to_thread
import pytest

from doubles import server
from doubles.embedder import ScriptedEmbedder, vector_of
from doubles.model_store import ListModelStore
from doubles.tokenizer import ByteTokenizer
from mlxbun.adapters.cli import doctor, embed, preflight, progress, talk, usage
from mlxbun.adapters.cli.main import run
from mlxbun.adapters.cli.wiring import Wiring
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.application.diagnosis import Check
from mlxbun.application.options import Option
from mlxbun.application.service import Service
from mlxbun.application.settings import OPTIONS, Settings, parse
from mlxbun.domain.embedding import shortened
from mlxbun.domain.sampling import TokenId


class Program:
    """The command line over doubles.  Calling it returns the exit status."""

    def __init__(self) -> None:
        self.store = ListModelStore(here=["demo"], remote=["org/far"])
        self.checks = [Check("mlx", "ok", "fine")]
        self.service_options: dict[str, Any] = {}
        self.benched: list[Sequence[str]] = []

    def __call__(self, *argv: str, environ: Mapping[str, str] | None = None) -> int:
        wiring = Wiring(
            version="1.2.3",
            target="nowhere:app",
            command=("false",),
            model_store=lambda _: self.store,
            open_service=self._open,
            machine_checks=lambda _: self.checks,
            bench=self._bench,
            open_cache_folder=open_block_store,
        )
        return run(argv, environ or {}, wiring)

    @asynccontextmanager
    async def _open(self, settings: Settings) -> AsyncIterator[Service]:
        service = server.service(**self.service_options)
        service.start(asyncio.get_running_loop().call_soon_threadsafe)
        try:
            yield service
        finally:
            await anyio.to_thread.run_sync(service.stop)

    def _bench(self, argv: Sequence[str]) -> int:
        self.benched.append(argv)
        return 7


@pytest.fixture
def program() -> Program:
    return Program()


Out = pytest.CaptureFixture[str]


def test_the_overview_names_every_command(program: Program, capsys: Out) -> None:
    assert program("--help") == 0
    shown = capsys.readouterr().out
    assert all(verb.name in shown and verb.summary.split()[0] in shown for verb in usage.VERBS)
    assert program("help") == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    "verb", ["serve", "generate", "gen", "chat", "embed", "get", "ls", "cache", "doctor"]
)
def test_help_is_the_same_before_and_after_a_command(
    program: Program, capsys: Out, verb: str
) -> None:
    assert program(verb, "--help") == 0
    shown = capsys.readouterr().out
    assert program("help", verb) == 0
    assert capsys.readouterr().out == shown
    assert max(map(len, shown.splitlines())) <= 100


def test_the_help_of_serve_shows_every_flag_variable_and_default(
    program: Program, capsys: Out
) -> None:
    program("serve", "--help")
    shown = capsys.readouterr().out
    for option in OPTIONS:
        assert all(flag in shown for flag in option.flags)
        assert option.variable in shown
    assert "[default 8080; MLX_BUN_PORT]" in shown
    assert "default 64; MLX_BUN_MAX_BODY" in shown


def test_help_shows_what_a_flag_takes() -> None:
    option = Option("a", ("--a",), "choice", "what a is", "A", choices=("x", "y"))
    shown = usage.describe(usage.Verb("v", "Does it.", "v [options]"), [option], {"a": "y"})
    assert shown.splitlines() == [
        "  v [options]",
        "",
        "Does it.",
        "",
        "A",
        "  --a x|y                   what a is  [default y]",
    ]


@pytest.mark.parametrize("words", [["--version"], ["-v"], ["version"]])
def test_the_version_is_shown(program: Program, capsys: Out, words: list[str]) -> None:
    assert program(*words) == 0
    assert capsys.readouterr().out == "mlxbun 1.2.3\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sevre"], "unknown command sevre: did you mean serve?"),
        (["org/model"], "unknown command org/model (to serve a model: mlxbun serve org/model)"),
        (["help", "chta"], "unknown command chta: did you mean chat?"),
        (["--prot"], "unknown flag --prot: did you mean --port?"),
        (["generate", "--port", "1"], "unknown flag --port: did you mean --prompt?"),
        (["get"], "which model?"),
        (["generate", "--prompt", "x", "--raw", "--system", "y"], "--raw has no chat template"),
    ],
)
def test_what_is_not_understood_ends_with_status_2(
    program: Program, capsys: Out, words: list[str], message: str
) -> None:
    assert program(*words) == 2
    assert message in capsys.readouterr().err


def test_bench_gets_its_words_as_they_are(program: Program) -> None:
    assert program("bench", "serve", "--help") == 7
    assert program("help", "bench") == 7
    assert [list(words) for words in program.benched] == [["serve", "--help"], ["--help"]]


def test_options_alone_mean_serve(program: Program, capsys: Out) -> None:
    assert program("--port", "99999") == 2
    assert "--port must be an integer between 1 and 65535" in capsys.readouterr().err


def test_models_are_fetched_with_progress_and_their_folder_on_stdout(
    program: Program, capsys: Out
) -> None:
    assert program("get", "org/far") == 0
    out, err = capsys.readouterr()
    assert out == "/models/org/far\n"
    assert "downloading org/far: 0 of 10" in err and "1.2 GB, 4-bit" in err


def test_a_model_that_cannot_be_had_ends_with_status_1(program: Program, capsys: Out) -> None:
    assert program("get", "nonsense") == 1
    assert capsys.readouterr().err == "mlxbun: 'nonsense' cannot be fetched\n"


def test_models_are_listed_as_a_table_and_as_json(program: Program, capsys: Out) -> None:
    assert program("ls") == 0
    assert capsys.readouterr().out.splitlines() == [
        "MODEL  TYPE   WEIGHTS  SIZE",
        "demo   llama  4-bit    1.2 GB",
    ]
    assert program("ls", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["path"] == "/models/demo"


def test_an_empty_list_says_how_to_get_a_model(program: Program, capsys: Out) -> None:
    program.store.here.clear()
    assert program("ls") == 0
    out, err = capsys.readouterr()
    assert out == "" and "mlxbun get demo" in err


def test_an_answer_goes_to_stdout_and_what_it_took_to_stderr(program: Program, capsys: Out) -> None:
    assert program("generate", "demo", "--prompt", "[say:to you 👋]", "--temp", "0") == 0
    out, err = capsys.readouterr()
    assert out == "to you 👋\n"
    assert "answer 12 tokens" in err and "first token after" in err and "tokens/s" in err


def test_the_prompt_may_come_from_stdin(
    program: Program, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("[say:heard]\n"))
    assert program("gen") == 0
    assert capsys.readouterr().out == "heard\n"


def test_without_any_prompt_there_is_nothing_to_answer(
    program: Program, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert program("generate") == 2
    assert "nothing to answer" in capsys.readouterr().err


def test_a_raw_prompt_has_no_template_around_it(program: Program, capsys: Out) -> None:
    assert program("generate", "--prompt", "abc", "--raw", "--temp", "0") == 0
    assert "[prompt 4 tokens" in capsys.readouterr().err  # three bytes, and the beginning of text


def test_at_most_256_tokens_are_generated_unless_more_are_asked_for(
    program: Program, capsys: Out
) -> None:
    program("generate", "--prompt", "[forever]")
    assert "answer 256 tokens" in capsys.readouterr().err
    program("generate", "--prompt", "[forever]", "--max-tokens", "3")
    assert "answer 3 tokens" in capsys.readouterr().err


def test_the_same_seed_draws_the_same_answer(program: Program, capsys: Out) -> None:
    def drawn(seed: str) -> str:
        program("generate", "--prompt", "x", "--temp", "1", "--seed", seed)
        return capsys.readouterr().out

    assert drawn("1") == drawn("1") != drawn("2")


@pytest.fixture
def embeds(program: Program) -> Program:
    program.service_options = {"embedder": ScriptedEmbedder(), "answers": False}
    return program


def read_as(text: str) -> list[TokenId]:
    return ByteTokenizer().encode(text, add_special=True)


def test_each_text_becomes_a_line_of_numbers(embeds: Program, capsys: Out) -> None:
    assert embeds("embed", "demo", "--text", "a", "--text", "b, c") == 0
    out, err = capsys.readouterr()
    lines = [array("f", map(float, line.split())) for line in out.splitlines()]
    assert lines == [vector_of(read_as("a")), vector_of(read_as("b, c"))]
    assert "[2 texts, 7 tokens, " in err


def test_lines_of_stdin_become_objects_in_their_order(
    embeds: Program, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed, "BATCH", 2)
    monkeypatch.setattr("sys.stdin", io.StringIO("one\r\ntwö\n three"))
    assert embeds("embed", environ={"MLX_BUN_EMBEDDING_MODEL": "demo"}) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("one\r\ntwö\n three"))
    assert embeds("embed", "demo", "--json") == 0
    out = capsys.readouterr().out.splitlines()
    said = [json.loads(line) for line in out[3:]]
    assert [(line["index"], line["text"]) for line in said] == [
        (0, "one"),
        (1, "twö"),
        (2, " three"),
    ]
    for line, numbers in zip(said, out[:3], strict=True):
        assert line["embedding"] == vector_of(read_as(line["text"])).tolist()
        assert array("f", map(float, numbers.split())).tolist() == line["embedding"]


def test_texts_may_search_for_something_and_vectors_be_short(embeds: Program, capsys: Out) -> None:
    assert embeds("embed", "demo", "--text", "q", "--instruct", "Find", "--dimensions", "2") == 0
    numbers = array("f", map(float, capsys.readouterr().out.split()))
    assert numbers == shortened(vector_of(read_as("Instruct: Find\nQuery:q")), 2)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("a\nb\n\nc\n", "text 3 must not be empty"),
        ("a\nb\n" + "c" * 200, "text 3 is too long"),
        ("a\nb\nc\nd\n\n", "text 5 must not be empty"),
    ],
)
def test_a_text_that_cannot_be_embedded_is_named_by_its_number(
    embeds: Program, capsys: Out, monkeypatch: pytest.MonkeyPatch, lines: str, said: str
) -> None:
    monkeypatch.setattr(embed, "BATCH", 2)
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert embeds("embed", "demo") == 1
    assert f"mlxbun: {said}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["embed", "--text", "a"], "which model?"),
        (["embed", "demo"], "nothing to embed"),
        (["embed", "demo", "--text", "a", "--dimensions", "0"], "--dimensions"),
    ],
)
def test_what_embed_cannot_do_is_said(
    embeds: Program, capsys: Out, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert embeds(*words, environ={"MLX_BUN_MODEL": "demo"}) == 2
    assert said in capsys.readouterr().err


def test_a_model_that_cannot_be_loaded_says_why(program: Program, capsys: Out) -> None:
    program.service_options = {"load_failure": "the weights are damaged"}
    assert program("generate", "--prompt", "x") == 1
    assert "mlxbun: the weights are damaged" in capsys.readouterr().err


def test_a_broken_answer_says_why(program: Program, capsys: Out) -> None:
    assert program("generate", "--prompt", "[break row]") == 1
    assert "mlxbun: " in capsys.readouterr().err


def test_a_model_that_cannot_be_fetched_is_not_loaded(program: Program, capsys: Out) -> None:
    assert program("generate", "org/far", "--prompt", "x") == 1  # `false` is the child here
    assert "org/far is not here and could not be fetched" in capsys.readouterr().err


Typed = Callable[..., list[str]]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Return a function that makes the next lines of input, and the prompts' record."""

    def type_(*lines: str | type[BaseException]) -> list[str]:
        rest, prompts = list(lines), list[str]()

        def answer(prompt: str) -> str:
            prompts.append(prompt)
            line = rest.pop(0) if rest else EOFError
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr("builtins.input", answer)
        return prompts

    return type_


def test_a_chat_remembers_until_it_is_reset(program: Program, capsys: Out, typed: Typed) -> None:
    typed("[say:A]", "", "[say:BB]", "/reset", "[say:A]", "/exit", "never read")
    assert program("chat", "--temp", "0") == 0
    out, err = capsys.readouterr()
    assert out == "A\nBB\nA\n"
    sizes = [int(line.split()[1]) for line in err.splitlines() if line.startswith("[prompt")]
    assert sizes[0] == sizes[2] < sizes[1]
    assert "(forgotten)" in err and server.MODEL_ID in err


def test_ctrl_c_at_the_prompt_gives_up_the_line_and_ctrl_d_ends(
    program: Program, capsys: Out, typed: Typed
) -> None:
    typed(KeyboardInterrupt, "[say:still here]")
    assert program("chat") == 0
    out, err = capsys.readouterr()
    assert out == "still here\n" and err.count(talk.HELP) == 2


def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on(
    program: Program, capsys: Out, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = talk.Talk.answer
    asked: list[Sequence[talk.Message]] = []

    def interrupted(self: talk.Talk, messages: Sequence[talk.Message]) -> talk.Answer:
        asked.append(messages)
        answer = real(self, messages)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(talk.Talk, "answer", interrupted)
    typed("[say:cut]", "[say:more]")
    assert program("chat") == 0
    assert "(stopped)" in capsys.readouterr().err
    assert [message["content"] for message in asked[1]] == ["[say:cut]", "cut", "[say:more]"]


def test_a_refused_turn_is_forgotten(program: Program, capsys: Out, typed: Typed) -> None:
    typed("[template refuses]", "[say:fine]")
    assert program("chat") == 0
    out, err = capsys.readouterr()
    assert out == "fine\n" and "the chat template says: no" in err


def test_a_system_message_comes_first_and_survives_a_reset(
    program: Program, capsys: Out, typed: Typed
) -> None:
    typed("x", "/reset", "x")
    assert program("chat", "--system", "Be brief.") == 0
    sizes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("[prompt")]
    typed("x")
    program("chat")
    bare = [line for line in capsys.readouterr().err.splitlines() if line.startswith("[prompt")]
    assert sizes[0].split()[1] == sizes[1].split()[1] != bare[0].split()[1]


@pytest.mark.parametrize(
    ("thinking", "arguments"),
    [("auto", {}), ("on", {"enable_thinking": True}), ("off", {"enable_thinking": False})],
)
def test_the_template_hears_of_thinking(thinking: str, arguments: dict[str, bool]) -> None:
    assert talk.template_arguments(parse(["--thinking", thinking], {})) == arguments


def test_doctor_shows_what_to_do_under_what_is_not_well(program: Program, capsys: Out) -> None:
    program.checks.append(Check("blas", "warn", "slow", "install one"))
    program("doctor")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("warn  blas") and lines[-1].strip() == "-> install one"
    assert {line.split()[1] for line in lines if not line.startswith(" ")} >= {
        "python", "platform", "mlxbun", "disk", "model", "memory", "address", "mlx",
    }  # fmt: skip


@pytest.mark.parametrize(("verdict", "status"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_doctor_fails_only_when_a_check_does(program: Program, verdict: Any, status: int) -> None:
    program.checks = [Check("mlx", verdict, "?")]
    assert program("doctor", "--json") == status


def test_doctor_fails_for_a_model_that_is_not_there(program: Program, capsys: Out) -> None:
    assert program("doctor", "nonsense", "--json") == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["model"]["verdict"] == "fail" and "nonsense" in checks["model"]["found"]


def test_doctor_warns_of_a_model_to_be_fetched_and_of_strange_variables(
    program: Program, capsys: Out
) -> None:
    assert program("doctor", "org/far", "--json", environ={"MLX_BUN_PROT": "1"}) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["model"]["todo"].startswith("mlxbun get org/far")
    assert "did you mean MLX_BUN_PORT?" in checks["settings"]["found"]


def test_available_memory_is_what_the_kernel_says(tmp_path: Any) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       100 kB\nMemAvailable:    60 kB\n")
    assert doctor.memory(meminfo) == (61440, "available")
    assert doctor.memory(tmp_path / "nothing")[1] == "in all"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_that_ends_with_a_line_break() -> None:
    out, clock = Terminal(), iter([0.0, 0.05, 0.2, 0.21, 0.22])
    with progress.ShownProgress(out, lambda: next(clock)) as shown:
        shown("fetching", 0, 4_000_000)
        shown("fetching", 1_000_000, 4_000_000)  # too soon
        shown("fetching", 2_000_000, 4_000_000)
        shown("fetching", 4_000_000, 4_000_000)  # the end is always shown
        shown("converting", 1, 3)
    shown_bars = out.getvalue().replace("\r\033[K", "|").split("\n")
    half, full = "=" * 15 + " " * 15, "=" * 30
    assert shown_bars[0] == (
        f"|fetching [{' ' * 30}] 0 of 4 MB|fetching [{half}] 2 of 4 MB|fetching [{full}] 4 of 4 MB"
    )
    assert shown_bars[1:] == [f"|converting [{'=' * 10}{' ' * 20}] 1 of 3", ""]


def test_elsewhere_there_is_a_line_now_and_then() -> None:
    out, clock = io.StringIO(), iter([0.0, 5.0, 10.0, 11.0])
    with progress.ShownProgress(out, lambda: next(clock)) as shown:
        shown("fetching", 0, 0)
        shown("fetching", 1_000_000, 0)
        shown("fetching", 2_000_000, 0)
        shown("converting", 1, 3)
    assert out.getvalue() == "fetching: 0\nfetching: 2 MB\nconverting: 1 of 3\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--host", "203.0.113.7"], "not an address of this machine"),
        (["--unix", "/nowhere/at/all"], "there is no folder /nowhere/at"),
    ],
)
def test_an_address_that_cannot_be_had_is_refused(argv: list[str], message: str) -> None:
    with pytest.raises(preflight.AddressUnusable, match=message):
        preflight.check_address(parse(argv, {}))


def test_nobody_is_let_in_while_an_address_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for the port would take the check for the server, and be cut off."""
    listening = Mock()
    monkeypatch.setattr(socket.socket, "listen", listening)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    preflight.check_address(parse(["--port", str(port)], {}))
    listening.assert_not_called()
