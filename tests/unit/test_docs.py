"""The documentation: what it links to is there, and what it names exists."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mlxbun.adapters.bench.command import run as bench
from mlxbun.adapters.cli import cache, doctor, embed, models, talk
from mlxbun.adapters.http.errors import RULES
from mlxbun.application.settings import ARGV, NOT_YET, OPTIONS
from mlxbun.application.stats import EngineStats, PromptCacheStats
from mlxbun.domain.memory import MemoryMeasured

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
VARIABLE = re.compile(r"\bMLX_BUN_[A-Z0-9_]+")
MADE = re.compile(r"<!-- made: .*?<!-- end -->", re.DOTALL)

PROGRAM = {"--help", "--version", "--json"}
# Of other programs: granian, pytest, scripts/docs, scripts/bench, tests/models/tiny.py, clients.
OTHERS = {"--interface", "--check", "--only", "--quick", "--no-write", "--best", "--rows"} | {
    "--sampling", "--out", "--there", "--folder-bytes", "--piece-bytes", "--prompt-tokens",
    "--limit", "--any-device", "--models", "--record", "--accept", "--draw", "--tries", "--from",
    "--model", "--tokens", "--oss", "--local-provider", "--continue", "--config"}  # fmt: skip
MISSPELLED = {"--temprature", "MLX_BUN_BATHC"}  # on purpose, to show what is said then


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def flags_of_bench() -> set[str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert bench(["serve", "--help"]) == 0
    return set(FLAG.findall(printed.getvalue()))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    for link in LINK.findall(text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page_name(page)} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{page_name(page)} links to {link}"


def test_what_is_made_from_the_code_is_what_the_code_says() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "docs"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("layer", ["domain", "application", "adapters"])
def test_every_module_has_its_words_in_the_architecture(layer: str) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = {path.stem for path in (ROOT / layer).rglob("*.py")} - {"__init__"}
    missing = {name for name in names if not re.search(rf"`{name}`|\b{name}\.py\b", text)}
    assert names and not missing


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_no_page_names_a_flag_or_a_variable_that_does_not_exist(page: Path) -> None:
    tables = (OPTIONS, talk.GENERATE_OWN, talk.CHAT_OWN, models.GET_OWN, models.LS_OWN, doctor.OWN)
    own = (cache.CACHE_OWN, embed.EMBED_OWN)
    options = [option for table in (*tables, *own) for option in table]
    known = {flag for option in options for flag in option.flags} | flags_of_bench()
    known |= {option.variable for option in options} | {ARGV} | PROGRAM | OTHERS | MISSPELLED
    text = MADE.sub("", page.read_text(encoding="utf-8"))
    named = {*FLAG.findall(text), *VARIABLE.findall(text)}
    assert named <= known, f"{page_name(page)}: {sorted(named - known)}"


def test_flags_of_other_programs_are_not_flags_to_come() -> None:
    assert not (OTHERS | PROGRAM) & NOT_YET


def test_every_count_of_stats_is_explained() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    tables = (EngineStats, PromptCacheStats, MemoryMeasured)
    names = {field.name for table in tables for field in msgspec.structs.fields(table)}
    assert not {name for name in names if f"`{name}`" not in text}


def test_every_error_code_is_explained() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert not {code for code in RULES if f"| `{code}` |" not in text}


@pytest.mark.parametrize(
    "picture", sorted((ROOT / "docs" / "pictures").glob("*.svg")), ids=page_name
)
def test_a_picture_stands_alone_and_is_read_in_the_dark(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in text and "<title" in text
    assert not re.search(r"href|url\((?!#)|https?://(?!www\.w3\.org/2000/svg)", text)
