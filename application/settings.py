"""Settings: everything that a server is told before it starts, captured once, never changed.

One table says what may be said and how; the Struct beside it holds types and defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from mlxbun.application.options import Option, Setting, Source, UsageError, did_you_mean, read
from mlxbun.domain.sampling_policy import SamplingRequest

ARGV = "MLX_BUN_ARGV"  # the command line, as a JSON list, for the server's worker process
PREFIX = "MLX_BUN_"


class Settings(Struct, frozen=True):
    """What was decided, and by whom.  None is "not said": the model or the request decides."""

    model: str = "demo"
    embedding_model: str | None = None
    served_name: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16", "native"] = "auto"
    context_length: int | None = None
    thinking: Literal["auto", "on", "off"] = "auto"
    grammar: bool = True
    host: str = "127.0.0.1"
    port: int = 8080
    unix: str | None = None
    api_key: str | None = None
    allow_origin: tuple[str, ...] = ()
    max_body_megabytes: int = 64
    keepalive_seconds: float = 10.0
    shutdown_timeout_seconds: float = 120.0
    batch: int = 8
    max_waiting: int = 64
    prefill_chunk: int = 2048
    l1: bool = False
    prompt_cache_gigabytes: float = 8.0
    cache_retention: Literal["lru", "cost-size"] = "lru"
    ssd_cache: str | None = None
    ssd_cache_max_gigabytes: float = 0.0
    ssd_cache_verify: Literal["sample", "always", "never"] = "sample"
    ssd_layout: Literal["blocks", "whole"] = "blocks"
    ssd_write_budget_gigabytes: float = 0.0
    generation_checkpoint_tokens: int = 0
    ssd_demote_idle_seconds: float = 300.0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    blas: str | None = None
    cache: str = "~/.cache/mlxbun"
    journal_size: int = 4096
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    sources: Mapping[str, Source] = field(default_factory=dict[str, Source])
    notes: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def max_body_bytes(self) -> int:
        return self.max_body_megabytes * 1_000_000

    @property
    def url(self) -> str:
        """The server's address for a client on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def address(self) -> str:
        """Where clients find the server, in words."""
        if self.unix is not None:
            return f"the socket {self.unix}"
        return f"{self.url} (OpenAI base URL: {self.url}/v1)"

    def sampling_defaults(self) -> SamplingRequest:
        """Return what flags say of sampling: below a request, above the model."""
        return SamplingRequest(
            temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p
        )


_ON_OFF = {"true": "on", "1": "on", "false": "off", "0": "off"}

MODEL_OPTIONS = (
    Option("model", ("--model",), "text",
           "demo, a folder, org/repo on Hugging Face, or part of a local model's name",
           "Model", "MLX_BUN_MODEL"),
    Option("query", ("--query", "-q"), "text", "the same as --model, weaker than the position",
           "Model"),
    Option("dtype", ("--dtype",), "choice",
           "type of the weights; auto is float32 on Linux CPUs, half precision for a quantised "
           "model on CUDA where it fits, and the model's own elsewhere; "
           "native leaves them as they are",
           "Model", "MLX_BUN_DTYPE", choices=("auto", "float32", "bfloat16", "float16", "native")),
    Option("context_length", ("--context-length",), "integer",
           "cap on prompt and answer together; at most the model's own",
           "Model", "MLX_BUN_RD_CONTEXT_LIMIT", low=1, high=100_000_000, unit="tokens"),
    Option("thinking", ("--thinking",), "choice",
           "whether the model reasons first when a request does not say; auto: its own way",
           "Model", "MLX_BUN_THINKING", choices=("auto", "on", "off"), synonyms=_ON_OFF),
    Option("grammar", ("--grammar",), "switch",
           "enforce schemas, expressions and forced calls; off only tells the model of them",
           "Model", "MLX_BUN_GRAMMAR"),
    Option("prefill_chunk", ("--prefill-chunk", "--prefill-step-size"), "integer",
           "most tokens of a prompt that one step reads",
           "Engine", "MLX_BUN_RD_PREFILL_CHUNK", low=1, high=1_000_000, unit="tokens"),
    Option("l1", ("--l1",), "switch",
           "parity: compute exactly as mlx-lm does, with chunks of a fixed size",
           "Engine", "MLX_BUN_L1"),
    Option("blas", ("--blas",), "text",
           "library that multiplies matrices on Linux CPUs, instead of the one that is found",
           "Engine", "MLX_BUN_BLAS"),
    Option("prompt_cache_gigabytes", ("--prompt-cache",), "number",
           "memory for the state of prompts and answers, which is not computed again; 0 is off",
           "Cache", "MLX_BUN_PROMPT_CACHE", low=0, high=100_000, unit="GiB"),
    Option("cache_retention", ("--cache-retention",), "choice",
           "what leaves a full cache first: what was used longest ago, or what was cheapest",
           "Cache", "MLX_BUN_CACHE_RETENTION", choices=("lru", "cost-size")),
    Option("ssd_cache", ("--ssd-cache",), "text",
           "folder that keeps that state across restarts and crashes; off without one",
           "Cache", "MLX_BUN_SSD_CACHE"),
    Option("ssd_cache_max_gigabytes", ("--ssd-cache-max",), "number",
           "most that the folder may take, least recently used out first; 0 is no limit",
           "Cache", "MLX_BUN_SSD_CACHE_MAX", low=0, high=1_000_000, unit="GiB"),
    Option("ssd_cache_verify", ("--ssd-cache-verify",), "choice",
           "which reads are held against their hash: each, some, or none",
           "Cache", "MLX_BUN_SSD_CACHE_VERIFY", choices=("sample", "always", "never"),
           synonyms={"true": "always", "1": "always", "on": "always",
                     "false": "sample", "0": "sample", "off": "sample"}),
    Option("ssd_layout", ("--ssd-layout",), "choice",
           "how state is written there: each block once, in a file of its own, or each "
           "conversation whole, in one file that every turn writes anew; both are read",
           "Cache", "MLX_BUN_SSD_LAYOUT", choices=("blocks", "whole")),
    Option("ssd_write_budget_gigabytes", ("--ssd-write-budget",), "number",
           "most that is written to the folder in a day; 0 is no limit",
           "Cache", "MLX_BUN_SSD_WRITE_BUDGET", low=0, high=1_000_000, unit="GiB"),
    Option("ssd_demote_idle_seconds", ("--ssd-demote-idle",), "number",
           "time without use after which state is kept in the folder alone; 0 keeps it in memory",
           "Cache", "MLX_BUN_SSD_DEMOTE_IDLE", low=0, high=1_000_000_000, unit="seconds"),
    Option("temperature", ("--temperature", "--temp"), "number",
           "0 is greedy", "Sampling", "MLX_BUN_TEMPERATURE", low=0, high=5),
    Option("top_p", ("--top-p",), "number",
           "keep the likeliest tokens that make up this much; 0 and 1 are off",
           "Sampling", "MLX_BUN_TOP_P", low=0, high=1),
    Option("top_k", ("--top-k",), "integer",
           "keep this many of the likeliest tokens; 0 and -1 are off",
           "Sampling", "MLX_BUN_TOP_K", low=-1, high=1_000_000, unit="tokens"),
    Option("min_p", ("--min-p",), "number",
           "drop tokens less likely than this fraction of the likeliest; 0 is off",
           "Sampling", "MLX_BUN_MIN_P", low=0, high=1),
    Option("max_tokens", ("--max-tokens",), "integer",
           "longest answer when a request does not say",
           "Sampling", "MLX_BUN_MAX_TOKENS", low=1, high=10_000_000, unit="tokens"),
    Option("cache", ("--cache",), "text",
           "folder for the demo model and for compiled kernels", "Process", "MLX_BUN_CACHE"),
    Option("log_level", ("--log-level",), "choice",
           "least serious message to show", "Process", "MLX_BUN_LOG_LEVEL",
           choices=("debug", "info", "warning", "error"),
           synonyms={name: name.lower() for name in ("DEBUG", "INFO", "WARNING", "ERROR")}),
)  # fmt: skip

SERVER_OPTIONS = (
    Option("host", ("--host",), "text", "address to listen on", "Server", "MLX_BUN_HOST"),
    Option("port", ("--port",), "integer", "port to listen on",
           "Server", "MLX_BUN_PORT", low=1, high=65535),
    Option("unix", ("--unix",), "text",
           "listen on this Unix socket instead of host and port", "Server", "MLX_BUN_UNIX"),
    Option("embedding_model", ("--embedding-model",), "text",
           "model that turns texts into vectors beside the served one, named as --model names one",
           "Model", "MLX_BUN_EMBEDDING_MODEL"),
    Option("served_name", ("--served-name",), "text",
           "id that clients see instead of the model's own", "Server", "MLX_BUN_SERVED_NAME"),
    Option("api_key", ("--api-key",), "text",
           "ask every client for this key (safer in the variable: others can see flags)",
           "Server", "MLX_BUN_API_KEY"),
    Option("allow_origin", ("--allow-origin", "--allowed-origins"), "texts",
           "web origin whose pages may call the server, or *; repeatable (variable: commas)",
           "Server", "MLX_BUN_ALLOW_ORIGIN"),
    Option("max_body_megabytes", ("--max-body",), "integer",
           "largest request that is read", "Server", "MLX_BUN_MAX_BODY",
           low=1, high=100_000, unit="MB"),
    Option("keepalive_seconds", ("--keepalive",), "number",
           "silence in a stream after which a comment keeps it open",
           "Server", "MLX_BUN_KEEPALIVE", low=0.1, high=3600, unit="seconds"),
    Option("shutdown_timeout_seconds", ("--shutdown-timeout",), "number",
           "how long running requests may take to end after SIGTERM (variable: milliseconds)",
           "Server", "MLX_BUN_SHUTDOWN_TIMEOUT_MS", low=0, high=86_400, unit="seconds",
           variable_scale=0.001),
    Option("batch", ("--batch", "--decode-concurrency"), "integer",
           "most requests that run at once; 1 is strictly one after the other",
           "Engine", "MLX_BUN_BATCH", low=1, high=1024, unit="rows"),
    Option("max_waiting", ("--max-waiting",), "integer",
           "most requests that wait; more are refused with 429",
           "Engine", "MLX_BUN_MAX_WAITING", low=0, high=1_000_000, unit="requests"),
    Option("generation_checkpoint_tokens", ("--generation-checkpoint",), "integer",
           "how often a running answer is written to the folder, so that it can be resumed; 0 is "
           "never",
           "Cache", "MLX_BUN_GENERATION_CHECKPOINT", low=0, high=10_000_000, unit="tokens"),
    Option("journal_size", ("--journal-size",), "integer",
           "steps whose events are kept in memory",
           "Process", "MLX_BUN_JOURNAL_SIZE", low=1, high=100_000_000, unit="steps"),
)  # fmt: skip

OPTIONS = MODEL_OPTIONS + SERVER_OPTIONS
GROUPS = ("Model", "Server", "Engine", "Cache", "Sampling", "Process")

# Known from mlx-bun 0.5.0 and mlx_lm.server, and missing here so far.
NOT_YET = frozenset({
    "--memory-budget", "--kv-budget", "--isolate",
    "--model-pool", "--whisper-model", "--whisper-idle-unload", "--whisper-resident",
    "--preload", "--kv-quant", "--paged-kv", "--paged-kv-block-size", "--adapter",
    "--adapter-path", "--draft-model", "--draft-kind", "--num-draft-tokens", "--ngram-max",
    "--ngram-min", "--mtp", "--hlg-sampling", "--hlg-width", "--hlg-shoulder", "--hlg-toe",
    "--hlg-pivot-offset", "--allow-private-media", "--no-open", "--l2", "--l3",
    "--compiled-decode", "--compiled-activations", "--fused-sdpa", "--force-wire",
    "--expert-offload", "--journal", "--prompt-cache-size", "--prompt-cache-bytes",
    "--prompt-concurrency", "--chat-template", "--chat-template-args",
    "--use-default-chat-template", "--trust-remote-code", "--pipeline", "--kv-bits",
    "--kv-group-size", "--quantized-kv-start",
})  # fmt: skip
_SECRET = frozenset({"api_key"})


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return the settings of `mlxbun serve argv`.  Raises UsageError."""
    settings, _ = parse_with(OPTIONS, (), argv, environ)
    return settings


def parse_with(
    options: Sequence[Option],
    own: Sequence[Option],
    argv: Sequence[str],
    environ: Mapping[str, str],
) -> tuple[Settings, Mapping[str, Any]]:
    """Return the settings and what was said of a command's `own` options.  Raises UsageError."""
    said = read((*own, *options), argv, environ, NOT_YET)
    if len(said.positionals) > 1:
        raise UsageError(f"one model at a time, but got {' and '.join(said.positionals)}")
    values, sources = dict(said.values), dict(said.sources)
    mine = {option.name: values.pop(option.name) for option in own if option.name in values}
    query = values.pop("query", None)
    if sources.get("model") != "flag" and (said.positionals or query is not None):
        values["model"] = said.positionals[0] if said.positionals else query
        sources["model"] = "flag"
    fields: dict[str, Source] = {name: sources[name] for name in values}
    notes = {name: note for name, note in said.notes.items() if name not in mine}
    notes |= _unknown_variables(environ)
    return Settings(**values, sources=fields, notes=notes), mine


def check(settings: Settings) -> None:
    """Raise UsageError for settings that a server cannot honour together."""
    if not settings.generation_checkpoint_tokens:
        return
    if settings.ssd_cache is None:
        raise UsageError("--generation-checkpoint needs a folder to write to: --ssd-cache DIR")
    if not settings.prompt_cache_gigabytes:
        raise UsageError("--generation-checkpoint needs the prefix cache: --prompt-cache above 0")


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Return the settings of a server's worker process: its parent's flags, then variables.

    Under `granian mlxbun.composition_root:app` alone there are no flags.  Raises UsageError.
    """
    try:
        argv = msgspec.json.decode(environ.get(ARGV, "[]"), type=list[str])
    except msgspec.DecodeError as error:
        raise UsageError(f"{ARGV} must be a JSON list of strings: {error}") from error
    return parse(argv, environ)


def to_environment(argv: Sequence[str]) -> dict[str, str]:
    """Return the variables from which a worker process reads the same settings."""
    return {ARGV: msgspec.json.encode(list(argv)).decode()}


def effective(settings: Settings, extra: Sequence[Setting] = ()) -> list[Setting]:
    """Return every setting, its value and where it came from; secrets only as set or not.

    A line of `extra` (what the model or the machine decided) replaces the one of its name.
    """
    lines: dict[str, Setting] = {}
    for name in Settings.__struct_fields__:
        if name in ("sources", "notes"):
            continue
        value = getattr(settings, name)
        if name in _SECRET and value is not None:
            value = "set"
        source = settings.sources.get(name, "default")
        lines[name] = Setting(name, value, source, settings.notes.get(name, ""))
    for name, note in settings.notes.items():
        if name not in lines:
            lines[name] = Setting(name, None, "environment", note)
    lines.update({line.name: line for line in extra})
    return list(lines.values())


def _unknown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    known = {option.variable for option in OPTIONS if option.variable} | {ARGV}
    return {
        name: "no setting of this version: ignored" + did_you_mean(name, known)
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in known
    }
