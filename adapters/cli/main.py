"""The command line: finds the command, runs it, and turns what went wrong into words.

Exit status: 0 well, 1 it could not be done, 2 it was not understood, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlxbun.adapters.cli import usage
from mlxbun.adapters.cli.preflight import AddressUnusable
from mlxbun.adapters.cli.wiring import Wiring
from mlxbun.application.model_store import LoadFailed, ModelUnavailable
from mlxbun.application.options import Option, UsageError, did_you_mean
from mlxbun.application.settings import MODEL_OPTIONS, OPTIONS
from mlxbun.domain.blocks import BlockLost, StoreFailed
from mlxbun.domain.refusal import Refused

Command = Callable[[Sequence[str], Mapping[str, str], Wiring], int]

_SAID = (ModelUnavailable, AddressUnusable, LoadFailed, Refused, StoreFailed, BlockLost)
_HELP = frozenset({"--help", "-h"})
_VERSION = frozenset({"--version", "-v", "version"})
_BY_NAME = {name: verb for verb in usage.VERBS for name in (verb.name, *verb.aliases)}


def run(argv: Sequence[str], environ: Mapping[str, str], wiring: Wiring) -> int:
    """Do what `argv` (without the program's name) says; return the exit status."""
    try:
        return _dispatch(list(argv), environ, wiring)
    except UsageError as error:
        print(f"mlxbun: {error}\nSee mlxbun help", file=sys.stderr)
        return 2
    except _SAID as error:
        print(f"mlxbun: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:  # such as `mlxbun ls | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _dispatch(argv: list[str], environ: Mapping[str, str], wiring: Wiring) -> int:
    if argv and argv[0] in _VERSION:
        print(f"mlxbun {wiring.version}")
        return 0
    if not argv or (argv[0].startswith("-") and argv[0] not in _HELP):
        argv.insert(0, "serve")
    name, words = argv[0], argv[1:]
    if name in _HELP or name == "help":
        return _help(words, wiring)
    verb = _BY_NAME.get(name)
    if verb is None:
        hint = f" (to serve a model: mlxbun serve {name})" if "/" in name or "." in name else ""
        raise UsageError(f"unknown command {name}" + did_you_mean(name, _BY_NAME) + hint)
    if verb.name == "bench":
        return wiring.bench(words)
    command, options, defaults = _command(verb.name)
    if not _HELP.isdisjoint(words[: words.index("--")] if "--" in words else words):
        print(usage.describe(verb, options, defaults))
        return 0
    return command(words, environ, wiring)


def _help(words: Sequence[str], wiring: Wiring) -> int:
    if not words:
        print(usage.overview(wiring.version))
        return 0
    verb = _BY_NAME.get(words[0])
    if verb is None:
        raise UsageError(f"unknown command {words[0]}" + did_you_mean(words[0], _BY_NAME))
    if verb.name == "bench":
        return wiring.bench(["--help"])
    if verb.name in ("help", "version"):
        print(usage.describe(verb, (), {}))
        return 0
    _, options, defaults = _command(verb.name)
    print(usage.describe(verb, options, defaults))
    return 0


def _command(name: str) -> tuple[Command, Sequence[Option], Mapping[str, Any]]:
    """Return what runs a command, its options, and defaults that differ from a server's.

    Imports it, since each brings much that the others do without.
    """
    match name:
        case "serve":
            from mlxbun.adapters.cli import serve

            return serve.serve, OPTIONS, {}
        case "generate" | "chat":
            from mlxbun.adapters.cli import talk

            defaults = {"max_tokens": talk.DEFAULT_MAX_TOKENS, "log_level": "warning"}
            if name == "chat":
                return talk.chat, (*talk.CHAT_OWN, *MODEL_OPTIONS), defaults
            return talk.generate, (*talk.GENERATE_OWN, *MODEL_OPTIONS), defaults
        case "embed":
            from mlxbun.adapters.cli import embed

            return embed.embed, (*embed.EMBED_OWN, *embed.EMBED_OPTIONS), embed.DEFAULTS
        case "get":
            from mlxbun.adapters.cli import models

            return models.get, (*models.GET_OWN, *models.GET_OPTIONS), {}
        case "ls":
            from mlxbun.adapters.cli import models

            return models.ls, (*models.LS_OWN, *models.LS_OPTIONS), {}
        case "cache":
            from mlxbun.adapters.cli import cache

            return cache.cache, (*cache.CACHE_OWN, *cache.CACHE_OPTIONS), {}
        case _:
            from mlxbun.adapters.cli import doctor

            return doctor.doctor, (*doctor.OWN, *OPTIONS), {}
