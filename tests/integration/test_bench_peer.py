"""The peer of the engine's bench: a process of its own, with the environment that it is given."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mlxbun.adapters.bench.engine_steps import StepsFailed
from mlxbun.adapters.bench.peer_process import Answer, Order, Peer

PEER = Path(__file__).parents[2] / "scripts" / "bench" / "peer.py"
RANDOM = "random:qwen3-tiny"
ORDER = Order("batch_generator", 3, "mixed", (5, 6, 7, 8), 20)


def command(model: str) -> list[str]:
    return [sys.executable, str(PEER), model]


@pytest.mark.parametrize("name", ["tiny-llama", RANDOM])
def test_both_loops_are_measured_in_the_peer(name: str, tiny_model: Callable[[str], Path]) -> None:
    model = name if name == RANDOM else str(tiny_model(name))
    with Peer(command(model), os.environ) as peer:
        theirs = peer.measure(ORDER)
        hand = peer.measure(msgspec.structs.replace(ORDER, loop="hand"))
    assert theirs.num_rows == 3 and theirs.num_steps >= 19
    assert (hand.num_rows, hand.num_steps) == (3, 19)
    assert theirs.wall_ms_per_step > 0 and hand.wall_ms_per_step > 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere MLX brings its BLAS")
def test_the_peer_multiplies_with_the_same_blas() -> None:
    def libraries(process: int | str) -> set[str]:
        lines = Path(f"/proc/{process}/maps").read_text().splitlines()
        return {line.split()[-1] for line in lines if "openblas" in line}

    with Peer(command(RANDOM), os.environ) as peer:
        assert libraries(peer.pid) == libraries("self")


def test_what_fails_in_the_peer_is_said_and_the_next_order_is_answered() -> None:
    with Peer(command(RANDOM), os.environ) as peer:
        with pytest.raises(StepsFailed, match="too few"):
            peer.measure(msgspec.structs.replace(ORDER, steps=-10))
        assert peer.measure(ORDER).num_rows == 3


def test_a_model_that_the_peer_cannot_load_is_said() -> None:
    with (
        pytest.raises(StepsFailed, match="no-such-folder"),
        Peer(command("/no-such-folder"), os.environ),
    ):
        pass


def test_a_peer_that_ends_by_itself_is_no_measurement() -> None:
    with (
        pytest.raises(StepsFailed, match="status 3"),
        Peer([sys.executable, "-c", "raise SystemExit(3)"], os.environ),
    ):
        pass


def test_the_peer_gets_the_environment_that_it_is_given_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLX_MAX_OPS_PER_BUFFER", "7")
    given = {k: v for k, v in os.environ.items() if k != "MLX_MAX_OPS_PER_BUFFER"}
    program = (
        "import json, os; "
        "print(json.dumps({'error': 'saw ' + str(os.environ.get('MLX_MAX_OPS_PER_BUFFER'))}))"
    )
    with pytest.raises(StepsFailed, match="saw None"), Peer([sys.executable, "-c", program], given):
        pass


def test_the_peer_ends_in_the_middle_of_a_run_when_its_orders_end() -> None:
    asked = msgspec.json.encode(msgspec.structs.replace(ORDER, steps=1_000_000)) + b"\n"
    process = subprocess.Popen(command(RANDOM), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    with process.stdout as answers:
        assert msgspec.json.decode(answers.readline(), type=Answer) == Answer()
        process.stdin.write(asked)
        process.stdin.close()
        assert process.wait(20) == 0
