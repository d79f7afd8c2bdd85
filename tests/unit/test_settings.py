from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.application.options import Option, Setting, UsageError
from mlxbun.application.settings import (
    ARGV,
    GROUPS,
    NOT_YET,
    OPTIONS,
    Settings,
    check,
    effective,
    from_environment,
    parse,
    to_environment,
)
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling_policy import check_range

EXAMPLES = {
    "text": st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
    "switch": st.sampled_from(["on", "off", "true", "false", "1", "0"]),
}


def examples(option: Option) -> st.SearchStrategy[str]:
    """Texts that mean something for `option`."""
    match option.kind:
        case "choice":
            return st.sampled_from([*option.choices, *option.synonyms])
        case "integer":
            return st.integers(int(option.low), int(option.high)).map(str)
        case "number":
            return st.floats(option.low, option.high).map(str)
        case "texts":
            return EXAMPLES["text"].filter(lambda text: not text.startswith("-"))
        case kind:
            return EXAMPLES[kind].filter(lambda text: not text.startswith("--"))


said = st.sampled_from(OPTIONS).flatmap(
    lambda option: st.tuples(st.just(option), st.sampled_from(option.flags), examples(option))
)


def test_the_table_and_the_struct_name_the_same_settings() -> None:
    names = [option.name for option in OPTIONS if option.name != "query"]
    assert sorted(names) == sorted({*Settings.__struct_fields__} - {"sources", "notes"})


def test_every_option_has_a_group_a_variable_and_flags_of_its_own() -> None:
    flags = [flag for option in OPTIONS for flag in option.flags]
    variables = [option.variable for option in OPTIONS if option.name != "query"]
    assert len(set(flags)) == len(flags) and not NOT_YET & set(flags)
    assert len(set(variables)) == len(variables) and all(variables)
    assert {option.group for option in OPTIONS} == set(GROUPS)


def test_nothing_said_gives_the_defaults() -> None:
    settings = parse([], {})
    assert settings == Settings()
    assert (settings.host, settings.port, settings.batch) == ("127.0.0.1", 8080, 8)
    assert settings.shutdown_timeout_seconds == 120
    assert settings.max_body_bytes == 64_000_000
    assert {line.source for line in effective(settings)} == {"default"}


@given(said)
def test_both_spellings_of_a_flag_mean_the_same(case: tuple[Option, str, str]) -> None:
    option, flag, text = case
    assert parse([flag, text], {}) == parse([f"{flag}={text}"], {})
    name = "model" if option.name == "query" else option.name
    assert parse([flag, text], {}).sources == {name: "flag"}


@given(st.lists(said))
def test_a_worker_process_reads_the_same_settings(cases: list[tuple[Option, str, str]]) -> None:
    argv = [word for _, flag, text in cases for word in (flag, text)]
    settings = parse(argv, {"MLX_BUN_PORT": "1234"})
    assert from_environment({"MLX_BUN_PORT": "1234", **to_environment(argv)}) == settings


@pytest.mark.parametrize(
    ("argv", "needs"),
    [([], "--ssd-cache"), (["--ssd-cache", "d", "--prompt-cache", "0"], "--prompt")],
)
def test_checkpoints_without_a_place_to_write_to_are_refused(argv: list[str], needs: str) -> None:
    with pytest.raises(UsageError, match=f"--generation-checkpoint needs .*{needs}"):
        check(parse(["--generation-checkpoint", "64", *argv], {}))
    check(parse(["--generation-checkpoint", "64", "--ssd-cache", "d"], {}))
    check(parse(argv, {"MLX_BUN_GENERATION_CHECKPOINT": "0"}))


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_default() -> None:
    environ = {"MLX_BUN_BATCH": "3", "MLX_BUN_PORT": "9000"}
    settings = parse(["--batch", "5"], environ)
    assert (settings.batch, settings.port, settings.max_waiting) == (5, 9000, 64)
    sources = {line.name: line.source for line in effective(settings)}
    assert (sources["batch"], sources["port"]) == ("flag", "environment")
    assert sources["max_waiting"] == "default"


@pytest.mark.parametrize(
    ("argv", "model"),
    [
        (["some/repo"], "some/repo"),
        (["-q", "llama"], "llama"),
        (["--query", "a", "b"], "b"),
        (["b", "--model", "c", "-q", "a"], "c"),
        (["--l1", "b"], "b"),
        (["--", "-odd-name"], "-odd-name"),
        ([], "from-the-variable"),
    ],
)
def test_the_model_flag_wins_over_the_position_and_that_over_the_query(
    argv: list[str], model: str
) -> None:
    settings = parse(argv, {"MLX_BUN_MODEL": "from-the-variable"})
    assert settings.model == model
    assert settings.sources["model"] == ("flag" if argv else "environment")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--prot", "1"], "unknown flag --prot: did you mean --port?"),
        (["--max-token=3"], "unknown flag --max-token: did you mean --max-tokens?"),
        (["--zzzzzz"], "unknown flag --zzzzzz"),
        (["-x"], "unknown flag -x"),
        (["--kv-quant", "x"], "--kv-quant is not in this version yet"),
        (["--adapter=x"], "--adapter is not in this version yet"),
        (["--port"], "--port needs a value: --port PORT"),
        (["--port", "--l1"], "--port needs a value: --port PORT"),
        (["--model="], "--model needs a value"),
        (["--dtype"], "--dtype needs a value: --dtype auto|float32|bfloat16|float16|native"),
        (["--port", "0"], "--port must be an integer between 1 and 65535, but is '0'"),
        (["--port", "80.5"], "--port must be an integer between 1 and 65535, but is '80.5'"),
        (["--temp", "nan"], "--temp must be a number between 0 and 5, but is 'nan'"),
        (["--temp", "-1"], "--temp must be a number between 0 and 5, but is '-1'"),
        (["--l1=maybe"], "--l1 must be on or off, but is 'maybe'"),
        (
            ["--dtype", "float3"],
            "--dtype must be one of auto, float32, bfloat16, float16, native, but is 'float3'"
            ": did you mean float32?",
        ),
        (["a", "b"], "one model at a time, but got a and b"),
    ],
)
def test_what_is_not_understood_is_an_error_that_says_what_to_do(
    argv: list[str], message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        parse(argv, {})
    assert str(raised.value) == message


def test_a_variable_out_of_range_is_an_error_in_its_own_unit() -> None:
    with pytest.raises(UsageError) as raised:
        parse([], {"MLX_BUN_SHUTDOWN_TIMEOUT_MS": "-5"})
    assert str(raised.value) == (
        "MLX_BUN_SHUTDOWN_TIMEOUT_MS must be a number between 0 and 86400000, but is '-5'"
    )


def test_the_shutdown_timeout_is_seconds_as_a_flag_and_milliseconds_as_a_variable() -> None:
    environ = {"MLX_BUN_SHUTDOWN_TIMEOUT_MS": "2500"}
    assert parse([], environ).shutdown_timeout_seconds == 2.5
    assert parse(["--shutdown-timeout", "7"], environ).shutdown_timeout_seconds == 7


@pytest.mark.parametrize("text", ["on", "true", "yes", "2", " 1", "off"])
def test_a_lever_in_the_environment_understands_only_1_and_0(text: str) -> None:
    settings = parse([], {"MLX_BUN_L1": text})
    assert settings.l1 is False and "l1" not in settings.sources
    (line,) = (line for line in effective(settings) if line.name == "l1")
    assert line.source == "default" and "only 1 and 0 are understood" in line.note


@pytest.mark.parametrize(("text", "value"), [("1", True), ("0", False)])
def test_a_lever_in_the_environment_that_is_understood_has_no_note(text: str, value: bool) -> None:
    settings = parse([], {"MLX_BUN_L1": text})
    assert settings.l1 is value and settings.sources == {"l1": "environment"}
    assert not settings.notes


def test_a_flag_silences_the_note_about_its_variable() -> None:
    assert not parse(["--l1"], {"MLX_BUN_L1": "yes"}).notes


def test_an_empty_variable_counts_as_unset() -> None:
    assert parse([], {"MLX_BUN_PORT": "", "MLX_BUN_L1": ""}) == Settings()


def test_a_variable_that_no_setting_knows_is_named_in_the_effective_configuration() -> None:
    settings = parse([], {"MLX_BUN_BATHC": "4", "OTHER": "x"})
    line = effective(settings)[-1]
    assert (line.name, line.value, line.source) == ("MLX_BUN_BATHC", None, "environment")
    assert line.note == "no setting of this version: ignored: did you mean MLX_BUN_BATCH?"


def test_origins_add_up_and_come_with_commas_from_a_variable() -> None:
    both = parse(["--allow-origin", "http://a", "--allow-origin=http://b"], {})
    assert both.allow_origin == ("http://a", "http://b")
    environ = {"MLX_BUN_ALLOW_ORIGIN": "http://c, http://d,"}
    assert parse([], environ).allow_origin == ("http://c", "http://d")
    assert parse(["--allow-origin", "*"], environ).allow_origin == ("*",)


def test_the_effective_configuration_never_shows_the_key() -> None:
    lines = effective(parse(["--api-key", "sesame"], {}))
    assert b"sesame" not in msgspec.json.encode(lines)
    assert Setting("api_key", "set", "flag") in lines


def test_what_the_machine_decided_replaces_what_was_asked() -> None:
    decided = Setting("dtype", "float32", "machine", "auto on a Linux CPU")
    more = Setting("blas_threads", 1, "machine")
    lines = effective(parse([], {}), [decided, more])
    assert [line for line in lines if line.name == "dtype"] == [decided]
    assert lines[-1] == more


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "min_p"])
def test_a_sampling_flag_takes_what_a_request_may_ask_and_no_more(name: str) -> None:
    (option,) = (option for option in OPTIONS if option.name == name)
    for value in (option.low, option.high):
        check_range(name, value)
    for value in (option.low - 1, option.high + 1):
        with pytest.raises(Refused):
            check_range(name, value)


def test_sampling_flags_become_what_the_server_asks_for() -> None:
    asked = parse(["--temp", "0", "--top-k=7"], {}).sampling_defaults()
    assert msgspec.to_builtins(asked) == {"temperature": 0, "top_k": 7}


@pytest.mark.parametrize("text", ["[1]", "{}", "nonsense", '"--l1"'])
def test_a_broken_command_line_in_the_environment_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match=ARGV):
        from_environment({ARGV: text})


@pytest.mark.parametrize(
    ("argv", "url"),
    [
        ([], "http://127.0.0.1:8080"),
        (["--host", "0.0.0.0", "--port", "81"], "http://127.0.0.1:81"),
        (["--host", "::"], "http://[::1]:8080"),
        (["--host", "fe80::1"], "http://[fe80::1]:8080"),
    ],
)
def test_the_url_is_one_that_a_client_on_this_machine_can_use(argv: list[str], url: str) -> None:
    assert parse(argv, {}).url == url


def test_the_address_in_words_names_the_base_url_or_the_socket() -> None:
    url = "http://127.0.0.1:8080"
    assert parse([], {}).address == f"{url} (OpenAI base URL: {url}/v1)"
    assert parse(["--unix", "/run/mlxbun"], {}).address == "the socket /run/mlxbun"
