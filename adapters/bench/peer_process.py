"""What the engine is measured against runs in a process of its own.

The engine sets variables that MLX reads when it starts, and replaces parts of the model that it
has loaded; neither may reach mlx-lm.  Orders and answers are JSON lines.  Whoever is not being
measured waits for a line, so the two never compute at the same time.
"""

from __future__ import annotations

import os
import select
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import IO, Literal

import msgspec
from msgspec import Struct

from mlxbun.adapters.bench.baselines import Baselines
from mlxbun.adapters.bench.engine_steps import SAMPLINGS, Sampling, StepCost, StepsFailed

ANSWER_SECONDS = 900.0  # a large model is being made, or a slow arm decodes 64 rows
LEAVE_SECONDS = 20.0


class Order(Struct, frozen=True):
    """One run to measure: see Baselines."""

    loop: Literal["batch_generator", "hand"]
    rows: int
    sampling: Sampling
    prompt: tuple[int, ...]
    steps: int


class Answer(Struct, frozen=True):
    """What became of an order, or of loading the model: its cost, nothing, or an error."""

    cost: StepCost | None = None
    error: str = ""


class Peer:
    """Starts the peer, waits until its model is loaded, and sends it orders.

    Use as a context manager.  `command` is a program that calls `serve`; `environment` is all
    that it gets.  It ends when this process does.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = list(command)
        self._environment = dict(environment)

    def __enter__(self) -> Peer:
        self._process = subprocess.Popen(
            self._command, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            self._answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        orders, answers = self._pipes()
        orders.close()
        try:
            self._process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        answers.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def measure(self, order: Order) -> StepCost:
        """Return what a step cost.  Raises StepsFailed when the peer could not say."""
        orders, _ = self._pipes()
        try:
            orders.write(msgspec.json.encode(order) + b"\n")
            orders.flush()
        except BrokenPipeError as error:
            raise StepsFailed(f"the peer has ended: {self._process.wait()}") from error
        cost = self._answer().cost
        if cost is None:
            raise StepsFailed("the peer answered without a cost")
        return cost

    def _answer(self) -> Answer:
        _, answers = self._pipes()
        ready, _, _ = select.select([answers], [], [], ANSWER_SECONDS)
        if not ready:
            raise StepsFailed(f"the peer did not answer in {ANSWER_SECONDS:g} s")
        line = answers.readline()
        if not line:
            raise StepsFailed(f"the peer ended with status {self._process.wait()}")
        answer = msgspec.json.decode(line, type=Answer)
        if answer.error:
            raise StepsFailed(f"the peer failed: {answer.error}")
        return answer

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None and answers is not None
        return orders, answers


def serve(open_baselines: Callable[[], Baselines], orders: IO[bytes], answers: IO[bytes]) -> None:
    """Load, say so, and answer orders until there are no more.  Then the process ends.

    It ends in the middle of a run too, when who gave the order is gone.
    """
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(orders, lines), daemon=True).start()

    def tell(answer: Answer) -> None:
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()

    try:
        baselines = open_baselines()
    except Exception as error:  # the parent is the one to tell
        tell(Answer(error=_words(error)))
        return
    tell(Answer())
    while True:
        try:
            cost = _run(baselines, msgspec.json.decode(lines.get(), type=Order))
        except Exception as error:
            tell(Answer(error=_words(error)))
        else:
            tell(Answer(cost))


def _read(orders: IO[bytes], lines: SimpleQueue[bytes]) -> None:
    for line in orders:
        lines.put(line)
    os._exit(0)  # a run that nobody waits for is not worth its end


def _run(baselines: Baselines, order: Order) -> StepCost:
    if order.loop == "hand":
        return baselines.hand_loop(order.rows, order.prompt, order.steps)
    params = SAMPLINGS[order.sampling](order.rows)
    return baselines.batch_generator(params, order.prompt, order.steps)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
