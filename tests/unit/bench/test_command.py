"""The words after `mlxbun bench`."""

from __future__ import annotations

import pytest

from mlxbun.adapters.bench.command import run
from mlxbun.adapters.bench.load import RequestShape


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["serve", "--url", "http://x", "--start", "demo"], "exclude each other"),
        (["serve", "--against", "mlx_lm"], "--folder"),
        (["serve", "--start", "demo", "--pid", "7"], "--pid is for --url"),
        (["serve", "--clients", "0"], "not a positive number"),
        (["serve", "--clents", "1"], "--clents"),
        ([], "COMMAND"),
    ],
)
def test_words_that_make_no_sense_are_named(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert why in capsys.readouterr().err


def test_help_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--help"]) == 0
    assert "--against" in capsys.readouterr().out


def test_a_request_says_only_what_was_asked() -> None:
    assert RequestShape(max_tokens=3, chat=False).payload("p", 5) == {
        "prompt": "p",
        "max_tokens": 3,
    }


def test_a_request_that_must_not_end_early_says_so_to_every_kind_of_server() -> None:
    shape = RequestShape(model="m", seeded=True, ignore_eos=True, end_ids=(2, 7), top_p=0.5)
    assert shape.payload("p", 5) == {
        "model": "m",
        "messages": [{"role": "user", "content": "p"}],
        "max_tokens": 128,
        "top_p": 0.5,
        "seed": 5,
        "ignore_eos": True,
        "logit_bias": {"2": -100.0, "7": -100.0},
    }
