"""`mlxbun embed`: texts to vectors, a line for each, by a model in this process."""

from __future__ import annotations

import logging.config
import re
import sys
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec
from anyio.from_thread import BlockingPortal, start_blocking_portal
from msgspec import Struct
from msgspec.structs import replace

from mlxbun.adapters.cli.serve import ensure_model, logging_configuration
from mlxbun.adapters.cli.wiring import Wiring
from mlxbun.application.embedding import Embedding, EmbeddingAsk, Embeddings
from mlxbun.application.options import Option, UsageError
from mlxbun.application.prepare import Preparer
from mlxbun.application.settings import OPTIONS, parse_with
from mlxbun.domain.conversation import well_formed
from mlxbun.domain.refusal import Refused

BATCH = 256  # texts that are read before the first of them is printed
_HELP = {
    "model": "a folder, org/repo on Hugging Face, or part of a local model's name",
    "embedding_model": "the same as --model, weaker than it and the position",
}
EMBED_OPTIONS = tuple(
    replace(
        option,
        help=_HELP.get(option.name, option.help),
        # MLX_BUN_MODEL means what answers.
        variable="" if option.name == "model" else option.variable,
    )
    for option in OPTIONS
    if option.name in ("model", "query", "embedding_model", "dtype", "blas", "cache", "log_level")
)
DEFAULTS: Mapping[str, str] = {"model": "", "log_level": "warning"}
EMBED_OWN = (
    Option("text", ("--text",), "texts",
           "a text, repeatable; without one, each line of stdin is one", "Texts"),
    Option("instruct", ("--instruct",), "text",
           "what the texts search for; of models that were trained with an instruction", "Texts"),
    Option("dimensions", ("--dimensions",), "integer",
           "the first so many of each vector, scaled to length 1", "Texts", low=1, high=1_000_000),
    Option("json", ("--json",), "switch",
           "print an object with index, text and embedding on each line, not numbers alone",
           "Output"),
)  # fmt: skip

_PLACE = re.compile(r"input(?:\[(\d+)\])?")


class Line(Struct, frozen=True):
    """What --json prints of a text."""

    index: int
    text: str
    embedding: list[float]


class Reader:
    """Has batches of texts embedded.  One thread uses it."""

    def __init__(
        self, portal: BlockingPortal, embedding: Embedding, dimensions: int | None, instruct: str
    ) -> None:
        self._portal = portal
        self._embedding = embedding
        self._dimensions = dimensions
        self._instruct = instruct
        self.num_texts = 0
        self.num_tokens = 0

    def load(self) -> None:
        """Wait for the model.  Raises what loading it raised."""
        self._portal.call(self._embedding.model, None)

    def vectors(self, texts: Sequence[str]) -> Sequence[array[float]]:
        """Return the vectors of the next texts.  Raises Refused, naming one by its number."""
        future = self._portal.start_task_soon(self._embed, texts)
        try:
            made = future.result()
        except Refused as refused:
            raise self._numbered(refused) from None
        finally:
            future.cancel()  # ends the work when Ctrl-C came; nothing if it has ended
        self.num_texts += len(texts)
        self.num_tokens += made.num_tokens
        return made.vectors

    async def _embed(self, texts: Sequence[str]) -> Embeddings:
        model = await self._embedding.model(None)
        ask = EmbeddingAsk(texts, self._dimensions, self._instruct or None, sum(map(len, texts)))
        return await self._embedding.embed(model, ask)

    def _numbered(self, refused: Refused) -> Refused:
        place = _PLACE.fullmatch(refused.field or "")
        if place is None:
            return refused
        name = f"text {self.num_texts + int(place[1] or 0) + 1}"
        return Refused(refused.code, refused.message.replace(place[0], name, 1))


def embed(argv: Sequence[str], environ: Mapping[str, str], wiring: Wiring) -> int:
    """Print a vector for each text on stdout, and statistics on stderr."""
    settings, own = parse_with(EMBED_OPTIONS, EMBED_OWN, argv, environ)
    name = settings.model if "model" in settings.sources else settings.embedding_model
    if name is None:
        raise UsageError("which model?  mlxbun embed MODEL, or set MLX_BUN_EMBEDDING_MODEL")
    settings = replace(settings, model=name, embedding_model=name)
    level = settings.log_level if "log_level" in settings.sources else "warning"
    logging.config.dictConfig(logging_configuration(level))
    ensure_model(settings, wiring, name)
    texts = iter(own["text"]) if "text" in own else _lines()
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(wiring.open_service(settings)) as service,
    ):
        embedding = Embedding(service, Preparer(service))
        reader = Reader(portal, embedding, own.get("dimensions"), own.get("instruct", ""))
        reader.load()
        begin = time.monotonic()
        while batch := [well_formed(text) for text in islice(texts, BATCH)]:
            first = reader.num_texts
            for index, vector in enumerate(reader.vectors(batch), first):
                print(_shown(index, batch[index - first], vector, as_json=bool(own.get("json"))))
            sys.stdout.flush()
    if not reader.num_texts:
        raise UsageError('nothing to embed: say --text "...", or write lines to stdin')
    seconds = time.monotonic() - begin
    texts_said = f"{reader.num_texts} text{'s' * (reader.num_texts != 1)}"
    print(f"[{texts_said}, {reader.num_tokens} tokens, {seconds:.2f} s]", file=sys.stderr)
    return 0


def _shown(index: int, text: str, vector: array[float], *, as_json: bool) -> str:
    if as_json:
        return msgspec.json.encode(Line(index, text, vector.tolist())).decode()
    return " ".join(f"{number:.9g}" for number in vector)  # enough for each float32 to come back


def _lines() -> Iterator[str]:
    if sys.stdin.isatty():
        print("a text a line, then Ctrl-D:", file=sys.stderr)
    try:
        for line in sys.stdin:
            yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is no UTF-8: {error}") from None
