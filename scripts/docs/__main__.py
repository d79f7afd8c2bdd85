"""Writes the parts of the documentation that are made from the code.

    .venv/bin/python scripts/docs            write them
    .venv/bin/python scripts/docs --check    say which pages are not what the code says

A page marks such a part with `<!-- made: NAME -->` and `<!-- end -->` on lines of their own.
What stands between the marks is written here, and all else by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from command_line import command_help
from interface import endpoints, error_codes, fields, sampling_fields
from options import flags_to_come, options

from mlxbun.adapters.http.anthropic_types import CountRequest, MessagesRequest
from mlxbun.adapters.http.fields import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
)
from mlxbun.adapters.http.openai_embeddings import EmbeddingsRequest
from mlxbun.adapters.http.openai_types import ChatRequest, CompletionRequest
from mlxbun.adapters.http.responses_types import ResponsesRequest
from mlxbun.application.settings import GROUPS

DOCS = Path(__file__).parents[2] / "docs"
PART = re.compile(r"(<!-- made: (.+?) -->\n).*?(<!-- end -->\n)", re.DOTALL)
MAKERS: dict[str, Callable[[], str]] = {
    **{f"options of {group}": partial(options, group) for group in GROUPS},
    "flags to come": flags_to_come,
    "endpoints": endpoints,
    "error codes": error_codes,
    "sampling fields": sampling_fields,
    "chat fields": partial(fields, CHAT, ChatRequest),
    "completion fields": partial(fields, COMPLETIONS, CompletionRequest),
    "messages fields": partial(fields, MESSAGES, MessagesRequest),
    "response fields": partial(fields, RESPONSES, ResponsesRequest),
    "count fields": partial(fields, COUNT_TOKENS, CountRequest),
    "embedding fields": partial(fields, EMBEDDINGS, EmbeddingsRequest),
    **{
        f"help {verb}".strip(): partial(command_help, verb)
        for verb in ("", "generate", "chat", "embed", "get", "ls", "cache")
    },
}


def filled(page: str) -> str:
    """Return `page` with its made parts as the code has them now."""
    return PART.sub(lambda part: f"{part[1]}\n{MAKERS[part[2]]()}\n\n{part[3]}", page)


def main() -> int:
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
    stale = {path: text for path, page in pages.items() if (text := filled(page)) != page}
    for path, text in stale.items():
        if "--check" in sys.argv[1:]:
            print(f"{path.relative_to(DOCS.parent)} is not what the code says: run scripts/docs")
        else:
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(DOCS.parent))
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
