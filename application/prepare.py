"""Preparing: from what a protocol understood of a request to rows, and from rows to a generation.

Every protocol comes through here.  Rendering and encoding a long text happens on a worker thread;
the event loop stays free.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from mlxbun.application.chat_prompt import Chat, hint_for, rendered
from mlxbun.application.encoding import encoded, prompt_ids
from mlxbun.application.generation import Generation, open_generation
from mlxbun.application.row_specs import Ask, KeptTo, Prepared, check_rows, prepared_rows
from mlxbun.application.row_text import Row
from mlxbun.application.service import EmbeddingModel, Model, Service
from mlxbun.application.turns import turn_boundaries
from mlxbun.application.wanted_answers import Asked, wanted
from mlxbun.domain import kept_ids
from mlxbun.domain.constraint import Constraint
from mlxbun.domain.divergence import Outline
from mlxbun.domain.kept_ids import Kept
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import TokenId

INLINE_BYTES = 2048  # encoding this much takes little more than the hop to a thread
NUM_WORKERS = 2
MAX_NAMED = 8  # places in a warning
COUNTED_WINDOWS = 4

T = TypeVar("T")


class _Encoded(Struct, frozen=True):
    """A conversation as text and ids, and what is known of both."""

    text: str
    ids: Sequence[TokenId]
    kept: Kept | None
    outline: Outline
    boundaries: tuple[int, ...]


class Preparer:
    """Prepares requests for `service`.  One event loop calls it."""

    def __init__(self, service: Service, *, load_seconds: float = 600.0) -> None:
        self._service = service
        self._load_seconds = load_seconds
        self._workers: anyio.CapacityLimiter | None = None
        # Of many requests that come at the same instant one is encoded in each pass of the
        # event loop, so that running streams are served between them.
        self._turn = anyio.Lock(fast_acquire=True)

    async def model(self, name: str | None = None) -> Model:
        """Return the model called `name`, waiting while it loads; None is whichever is here.

        A name is the served id, its last part, or what the server was started with.  Raises
        Refused: model_not_found for another name, unsupported for a model that only embeds,
        unavailable when loading failed or takes too long.
        """
        model, embedding = await self.loaded()
        served = model.card.id
        if name is not None and not model.is_called(name):
            if embedding is not None and embedding.is_called(name):
                served = embedding.card.id
            else:
                raise Refused(
                    "model_not_found",
                    f"the model {name!r} is not served here; {served!r} is",
                    "model",
                )
        elif model.answers:
            return model
        raise Refused(
            "unsupported",
            f"{served!r} is an embedding model, which writes no text: it serves /v1/embeddings",
            "model",
        )

    async def loaded(self) -> tuple[Model, EmbeddingModel | None]:
        """Return what is served, waiting while it loads.  Raises Refused: unavailable."""
        model = self._service.loaded
        if model is None:
            model = await self._loaded()
        return model, self._service.embedding

    async def chat(self, model: Model, chat: Chat, ask: Ask) -> Prepared:
        """Render and encode a conversation.  Raises Refused, naming the field at fault."""
        wants = Asked(ask.constraint, chat.tools, chat.forced, chat.one_call, chat.strict)
        hint = hint_for(model, ask.constraint, chat.forced)

        def encode() -> _Encoded:
            messages, text = rendered(model, chat, hint)
            ids, kept = self._as_kept(model, text, encoded(model, text, add_special=False))
            said = (messages, chat.tools, chat.arguments)
            outline = self._service.outlines.outline(model.card.id, ids, *said)
            whole = model.cuts == "boundary"
            found = turn_boundaries(model.tokenizer, *said, text, ids) if whole else ()
            return _Encoded(text, ids, kept, outline, found)

        said = await self.off_loop(encode, ask.num_bytes)
        constraint, notes = wanted(wants, model.family, said.text, _stops(model))
        kept_to = await self._kept_to(model, constraint, ask, notes)
        prepared = prepared_rows(
            self._service, model, [said.ids], ask, "messages", said.boundaries, kept_to
        )
        if said.kept is not None:
            self._service.keep_ids(kept_ids.used(self._service.kept_ids, said.kept))
        self._service.outlines.note(ask.id, [said.outline], ask.session)
        family = model.family
        return replace(
            prepared,
            reader=partial(
                family.reader,
                chat.tools,
                said.text,
                one_call=chat.one_call,
                # A small model that must call repeats its call until max_tokens ends it.
                no_repeats=chat.forced is not None,
            ),
            shown=family.shown(with_tools=bool(chat.tools)),
            text=said.text,
        )

    async def count(
        self, model: Model, chat: Chat, num_bytes: int = 0, constraint: Constraint | None = None
    ) -> int:
        """Return how many tokens a conversation's prompt has.  Raises Refused as `chat` does.

        One that is too long is counted, to four windows or so: its client must know how much too
        long.  A `constraint` is nothing but words in it, where nothing enforces it.
        """
        hint = hint_for(model, constraint, chat.forced)

        def encode() -> int:
            _, text = rendered(model, chat, hint)
            canonical = encoded(model, text, add_special=False, num_windows=COUNTED_WINDOWS)
            ids, _ = self._as_kept(model, text, canonical)
            return len(ids)

        return await self.off_loop(encode, num_bytes)

    async def texts(
        self,
        model: Model,
        prompts: Sequence[str | Sequence[int]],
        ask: Ask,
        suffix: str | None = None,
    ) -> Prepared:
        """Encode bare prompts, or take their ids as they are.

        With a `suffix`, ask for what stands between each prompt and it.  Raises Refused with
        `prompt[i]` or `suffix`.
        """

        def encode() -> tuple[list[list[TokenId]], list[Outline]]:
            every = [prompt_ids(model, p, i, suffix) for i, p in enumerate(prompts)]
            return every, [self._service.outlines.outline(model.card.id, ids) for ids in every]

        if not prompts:
            raise Refused("invalid_value", "prompt must not be an empty list", "prompt")
        check_rows(len(prompts) * ask.n)
        every, outlines = await self.off_loop(encode, ask.num_bytes)
        kept_to = await self._kept_to(model, ask.constraint, ask)
        prepared = prepared_rows(self._service, model, every, ask, "prompt", kept_to=kept_to)
        self._service.outlines.note(ask.id, outlines, ask.session)
        return prepared

    async def _kept_to(
        self,
        model: Model,
        constraint: Constraint | None,
        ask: Ask,
        notes: tuple[str, ...] = (),
    ) -> KeptTo:
        """Return what rows keep to, compiled, and what of it they do not."""
        if constraint is None:
            return KeptTo(None, notes)
        if model.constraints is None:
            hint = "grammars are off (MLX_BUN_GRAMMAR=0), and the model was only told of it"
            return KeptTo(None, (*notes, f"grammar not enforced: {constraint.field}: {hint}"))
        compiled = await model.constraints.compiled(constraint)
        grammar = model.constraints.row_grammar(constraint, compiled, model.card.stop_ids)
        if compiled.unenforced:
            named = ", ".join(ascii(place)[1:-1] for place in compiled.unenforced[:MAX_NAMED])
            notes = (*notes, f"{constraint.field}: not enforced: {named}")
        return KeptTo(grammar, notes)

    def _as_kept(
        self, model: Model, text: str, canonical: Sequence[TokenId]
    ) -> tuple[Sequence[TokenId], Kept | None]:
        """Return the ids of a prompt, and whose it begins with of those that were kept."""
        if model.cuts is None:
            return canonical, None
        ids, kept = kept_ids.ids_of(self._service.kept_ids, model.tokenizer, text, canonical)
        # There may be more of them than the encoding has, and more than there is room for.
        return (ids, kept) if len(ids) < model.card.context_window else (canonical, None)

    async def _loaded(self) -> Model:
        try:
            with anyio.fail_after(self._load_seconds):
                return await self._service.model()
        except TimeoutError:
            raise Refused("unavailable", "the model is still loading; try again") from None
        except Exception as error:  # whatever loading raised: the log has it
            raise Refused("unavailable", "the model could not be loaded; see the log") from error

    async def off_loop(self, work: Callable[[], T], num_bytes: int) -> T:
        """Do `work` on a worker thread if it is for a request of more than a few `num_bytes`."""
        if num_bytes <= INLINE_BYTES:
            async with self._turn:
                return work()
        if self._workers is None:
            self._workers = anyio.CapacityLimiter(NUM_WORKERS)
        return await anyio.to_thread.run_sync(work, limiter=self._workers, abandon_on_cancel=True)


@asynccontextmanager
async def generate(service: Service, prepared: Prepared) -> AsyncGenerator[Generation, None]:
    """Submit what was prepared, or attach to what runs under its key.  As `open_generation`."""
    tokenizer, text = prepared.model.tokenizer, prepared.text

    def completed(row: Row) -> None:
        if text is not None and prepared.model.cuts is not None:
            said = (tokenizer, text, row.spec.prompt_ids, row.said)
            service.keep_ids(kept_ids.remember(service.kept_ids, *said))

    with service.answers.held(prepared.attempt, prepared.specs, service.submitter) as submitter:
        async with open_generation(
            submitter,
            prepared.specs,
            prepared.stop,
            partial(tokenizer.decoder, prepared.shown),
            prepared.reader,
            completed,
        ) as generation:
            yield generation


def _stops(model: Model) -> frozenset[str]:
    """Return the spellings of the tokens that end an answer."""
    spelled = map(model.tokenizer.token_bytes, model.card.stop_ids)
    return frozenset(token.decode(errors="replace") for token in spelled)
