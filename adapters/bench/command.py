"""`mlxbun bench serve`: drives running servers with clients and says what they did."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from mlxbun.adapters.bench import cpu
from mlxbun.adapters.bench.client import Client, Endpoint
from mlxbun.adapters.bench.load import LoadRun, RequestShape, run_load, summarise
from mlxbun.adapters.bench.models import ModelNotFound, end_ids, find_model
from mlxbun.adapters.bench.prompts import CannotProbe, Prompts, words_for
from mlxbun.adapters.bench.report import Arm, LoadReport, picture, table
from mlxbun.adapters.bench.servers import (
    DidNotStart,
    ServerProcess,
    start_mlx_lm,
    start_ours,
)

EOS_IDS = "ends that logit_bias pushes down (default: those of the model's folder)"
DEFAULT_URL = "http://127.0.0.1:8080"
EPILOG = """\
examples:
  mlxbun bench serve                                  the server on 127.0.0.1:8080
  mlxbun bench serve --start demo --against mlx_lm    both on the demo model, taking turns
  mlxbun bench serve --url http://mac:1234 --model qwen3 --clients 1,8 --picture speed.svg

Tokens are counted by the server (stream_options.include_usage).  Times are of records that
bring text; the first is the time to first text.  CPU is of the server's process and its
children, and is known when the server was started here, or with --pid."""


class Target(Struct, frozen=True):
    """A server to measure, and its process if that is on this machine."""

    name: str
    endpoint: Endpoint
    shape: RequestShape
    pid: int | None


def run(argv: Sequence[str]) -> int:
    """Run `bench` with the words after it; return the exit status.

    1 when a request failed or nothing could be measured, 2 when the words make no sense.
    """
    parser = _parser()
    try:
        args = parser.parse_args(list(argv))
    except SystemExit as stop:  # argparse has said why
        return stop.code if isinstance(stop.code, int) else 2
    if wrong := _contradiction(args):
        print(f"mlxbun bench serve: {wrong}", file=sys.stderr)
        return 2
    try:
        report = asyncio.run(_measure(args))
    except (CannotProbe, DidNotStart, ModelNotFound, cpu.NoSuchProcess) as error:
        print(f"mlxbun bench serve: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(table(report))
    if args.json:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    if args.picture:
        args.picture.write_text(picture(report))
    return 1 if any(r.num_errors for r in report.arms[0].results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mlxbun bench", description="Measure servers.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="drive a running OpenAI-compatible server, or two that take turns",
        description="Drive a running OpenAI-compatible server with clients.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = serve.add_argument_group("servers")
    which.add_argument("--url", help=f"a running server (default: {DEFAULT_URL})")
    which.add_argument("--start", metavar="MODEL", help="start `mlxbun serve MODEL` for this")
    which.add_argument("--args", default="", help="further flags for --start, in one string")
    which.add_argument("--against", choices=("mlx_lm",), help="take turns with mlx_lm.server")
    which.add_argument("--folder", help="the model of --against (default: that of --start)")
    which.add_argument("--model", default="", help="the name to ask for (default: first listed)")
    which.add_argument("--api-key", default="", help="sent as a bearer token to --url")
    which.add_argument("--pid", type=_positive, help="the process of --url, for its CPU time")
    load = serve.add_argument_group("load")
    load.add_argument("--clients", type=_counts, default=(1, 4, 8, 16), metavar="N,N")
    load.add_argument("--requests", type=_positive, default=2, help="a client (default: 2)")
    load.add_argument("--rounds", type=_positive, default=2, help="of all that (default: 2)")
    load.add_argument("--completions", action="store_true", help="instead of chat completions")
    load.add_argument("--prompt-tokens", type=_positive, default=64, help="about (default: 64)")
    load.add_argument("--max-tokens", type=_positive, default=128, help="(default: 128)")
    load.add_argument("--temperature", type=float)
    load.add_argument("--top-p", type=float)
    load.add_argument("--seeded", action="store_true", help="send a seed with each request")
    load.add_argument("--ignore-eos", action="store_true", help="do not let answers end early")
    load.add_argument("--eos-ids", type=_ids, default=(), metavar="ID,ID", help=EOS_IDS)
    load.add_argument("--timeout", type=float, default=300.0, help="seconds (default: 300)")
    out = serve.add_argument_group("output")
    out.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    out.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw the results there")
    return parser


def _contradiction(args: argparse.Namespace) -> str:
    if args.url and args.start:
        return "--url and --start exclude each other"
    if args.against and not (args.start or args.folder):
        return "--against needs the model's folder: give --folder, or --start"
    if args.pid and args.start:
        return "--pid is for --url; --start knows its process"
    return ""


async def _measure(args: argparse.Namespace) -> LoadReport:
    with contextlib.ExitStack() as started:
        targets = await _targets(args, started)
        first = targets[0]
        async with Client(first.endpoint, args.timeout) as client:
            num_words = await words_for(client, first.shape, args.prompt_tokens)
        for target in targets:  # what a first request costs once is not measured
            await _turn(target, args, num_words, max(args.clients), 1, seed=0)
        runs: dict[tuple[str, int], list[LoadRun]] = {}
        for num_clients in args.clients:
            for number in range(args.rounds):
                for target in targets:
                    seed = 1000 * (number + 1) + num_clients
                    done = await _turn(
                        target, args, num_words, num_clients, args.requests, seed=seed
                    )
                    runs.setdefault((target.name, num_clients), []).append(done)
                    _say(target, done)
        arms = [
            Arm(
                target.name,
                target.endpoint.url,
                tuple(summarise(runs[target.name, n]) for n in args.clients),
            )
            for target in targets
        ]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return LoadReport(today, cpu.machine(), first.shape, args.requests, args.rounds, tuple(arms))


async def _turn(
    target: Target,
    args: argparse.Namespace,
    num_words: int,
    num_clients: int,
    num_requests: int,
    *,
    seed: int,
) -> LoadRun:
    return await run_load(
        target.endpoint,
        target.shape,
        Prompts(num_words, seed),
        num_clients=num_clients,
        num_requests=num_requests,
        pid=target.pid,
        timeout_seconds=args.timeout,
    )


def _say(target: Target, run: LoadRun) -> None:
    speed = run.completion_tokens / run.seconds
    print(f"{target.name}, {run.num_clients} clients: {speed:.1f} tok/s", file=sys.stderr)


async def _targets(args: argparse.Namespace, started: contextlib.ExitStack) -> list[Target]:
    folder = find_model(args.folder or args.start) if args.against or args.start else None
    shape = RequestShape(
        model=args.model,
        chat=not args.completions,
        prompt_tokens=args.prompt_tokens,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        seeded=args.seeded,
        ignore_eos=args.ignore_eos,
        end_ids=args.eos_ids or (end_ids(folder) if folder else ()),
    )
    targets: list[Target] = []
    if args.start:
        ours = start_ours(str(folder), args.args.split())
        targets.append(await _started(ours, shape, started))
    else:
        endpoint = Endpoint((args.url or DEFAULT_URL).removesuffix("/v1"), args.api_key)
        name = endpoint.url.partition("//")[2]
        named = args.model or await _first_model(endpoint)
        targets.append(
            Target(name, endpoint, msgspec.structs.replace(shape, model=named), args.pid)
        )
    if args.against:
        theirs = start_mlx_lm(str(folder))
        targets.append(await _started(theirs, msgspec.structs.replace(shape, model=""), started))
    return targets


async def _started(
    server: ServerProcess, shape: RequestShape, started: contextlib.ExitStack
) -> Target:
    started.callback(server.stop)
    times = await server.ready()
    print(f"{server.name} answers after {times.answered:.1f} s", file=sys.stderr)
    return Target(server.name, server.endpoint, shape, server.pid)


async def _first_model(endpoint: Endpoint) -> str:
    """Return the first model that the server lists; "" where it does not list any."""
    async with Client(endpoint, 30) as client:
        reply = await client.send("GET", "/v1/models")
    if reply.status == 0:
        raise CannotProbe(f"{endpoint.url}: {reply.error}")
    if reply.status != 200:
        return ""
    listed = msgspec.json.decode(reply.body, type=_Models)
    return listed.data[0].id if listed.data else ""


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model] = []


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
