"""What is imported when: start-up is fast, and a process that will fork stays without threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = "{'mlx', 'mlx_lm', 'numpy', 'granian', 'tokenizers', 'transformers'}"


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


@pytest.mark.parametrize("words", [["--help"], ["serve", "--help"], ["chat", "--help"], ["ls"]])
def test_the_command_line_imports_nothing_heavy(words: list[str]) -> None:
    done = run(
        "import sys\n"
        "from mlxbun.composition_root import main\n"
        f"sys.argv = ['mlxbun', *{words!r}]\n"
        "assert main() == 0\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        f"assert not loaded & {HEAVY}, loaded & {HEAVY}\n"
    )
    assert done.returncode == 0, done.stderr


def test_looking_for_a_model_leaves_a_process_that_may_fork() -> None:
    done = run(
        "import sys, threading\n"
        "from mlxbun.composition_root.models import model_store\n"
        "from mlxbun.application.settings import Settings\n"
        "store = model_store(Settings())\n"
        "store.find('demo'), store.find('org/repository'), store.models()\n"
        "assert {'numpy', 'mlx'}.isdisjoint(sys.modules)\n"
        "assert threading.active_count() == 1\n"
    )
    assert done.returncode == 0, done.stderr
