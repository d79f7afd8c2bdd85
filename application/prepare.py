"""Preparing: what a protocol understood of a request, turned into rows the engine can run.

Every protocol comes through here, so that all of them cap, refuse and seed alike.  Rendering
and encoding a long text happens on a worker thread; the event loop stays free.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from mlxbun.application.generation import Generation, Row, open_generation
from mlxbun.application.idempotency import Attempt
from mlxbun.application.requests import RequestSpec
from mlxbun.application.service import EmbeddingModel, Model, Service
from mlxbun.application.turns import turn_boundaries
from mlxbun.application.wanted_answers import Asked, ForcedCall, wanted
from mlxbun.domain import kept_ids, sampling
from mlxbun.domain.constraint import Constraint, RowGrammar, hint_of
from mlxbun.domain.conversation import PlainText, TextReader, Turn, normalise
from mlxbun.domain.divergence import Outline
from mlxbun.domain.kept_ids import Kept
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import MAX_STOP_STRINGS, RequestId, SamplingRequest, TokenId
from mlxbun.domain.text import ModelCard, Tokenizer

MAX_ROWS = 64
INLINE_BYTES = 2048  # encoding this much takes little more than the hop to a thread
SLICE_CHARS = 1 << 18
NUM_WORKERS = 2
MAX_NAMED = 8  # places in a warning

T = TypeVar("T")


class Ask(Struct, frozen=True):
    """How to generate.

    `id` names the request in the journal, `fresh_seed` serves one that names none, and
    `num_bytes` is what the request came in: long ones are encoded off the event loop.  `session`
    is what the client calls the conversation.  `attempt`
    says that the request may be sent again, and shall be answered once.  `constraint` is what
    answers are to look like.
    """

    id: str
    fresh_seed: int
    num_bytes: int = 0
    sampling: SamplingRequest = SamplingRequest()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    session: str | None = None
    attempt: Attempt | None = None
    constraint: Constraint | None = None


class Chat(Struct, frozen=True):
    """A conversation as the wire had it; `arguments` are for the template.

    With `one_call` an answer ends after its first call; `forced` answers are calls.  Arguments
    of tools in `strict` fit their schemas.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    arguments: Mapping[str, Any] = {}
    one_call: bool = False
    forced: ForcedCall | None = None
    strict: frozenset[str] = frozenset()


class Prepared(Struct, frozen=True):
    """Rows ready to submit: the n rows of the first prompt, those of the second, ...

    `reader` makes what takes a row's text apart, and `shown` are the special tokens that it must
    see.  `text` is the prompt, where there is one and it was rendered.  `warnings` say what of the
    request is not kept to.
    """

    model: Model
    prompts: tuple[tuple[TokenId, ...], ...]
    specs: tuple[RequestSpec, ...]
    stop: tuple[str, ...]
    reader: Callable[[], TextReader] = PlainText
    shown: frozenset[str] = frozenset()
    text: str | None = None
    attempt: Attempt | None = None
    warnings: tuple[str, ...] = ()

    @property
    def num_prompt_tokens(self) -> int:
        """Each prompt counts once, however many rows share it."""
        return sum(map(len, self.prompts))


class _Encoded(Struct, frozen=True):
    """A conversation as text and ids, and what is known of both."""

    text: str
    ids: Sequence[TokenId]
    kept: Kept | None
    outline: Outline
    boundaries: tuple[int, ...]


class _KeptTo(Struct, frozen=True):
    """What rows keep to, and what of the request they do not."""

    grammar: RowGrammar | None
    warnings: tuple[str, ...] = ()


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
        hint = _hint(model, ask.constraint, chat.forced)

        def encode() -> _Encoded:
            messages, text = _render(model, chat, hint)
            ids, kept = self._as_kept(model, text, _encode(model, text, add_special=False))
            said = (messages, chat.tools, chat.arguments)
            outline = self._service.outlines.outline(model.card.id, ids, *said)
            whole = model.cuts == "boundary"
            found = turn_boundaries(model.tokenizer, *said, text, ids) if whole else ()
            return _Encoded(text, ids, kept, outline, found)

        said = await self.off_loop(encode, ask.num_bytes)
        constraint, notes = wanted(wants, model.family, said.text, _stops(model))
        kept_to = await self._kept_to(model, constraint, ask, notes)
        prepared = self._rows(model, [said.ids], ask, "messages", said.boundaries, kept_to)
        if said.kept is not None:
            self._service.kept_ids = kept_ids.used(self._service.kept_ids, said.kept)
        self._service.outlines.note(ask.id, [said.outline], ask.session)
        family = model.family
        return replace(
            prepared,
            reader=partial(family.reader, chat.tools, said.text, one_call=chat.one_call),
            shown=family.shown(with_tools=bool(chat.tools)),
            text=said.text,
        )

    async def count(
        self, model: Model, chat: Chat, num_bytes: int = 0, constraint: Constraint | None = None
    ) -> int:
        """Return how many tokens a conversation's prompt has.  Raises Refused as `chat` does.

        A `constraint` is nothing but words in it, where nothing enforces it.
        """
        hint = _hint(model, constraint, chat.forced)

        def encode() -> int:
            _, text = _render(model, chat, hint)
            ids, _ = self._as_kept(model, text, _encode(model, text, add_special=False))
            return len(ids)

        num_tokens = await self.off_loop(encode, num_bytes)
        _room(model.card, num_tokens, "messages")
        return num_tokens

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
            every = [_encode_prompt(model, p, i, suffix) for i, p in enumerate(prompts)]
            return every, [self._service.outlines.outline(model.card.id, ids) for ids in every]

        if not prompts:
            raise Refused("invalid_value", "prompt must not be an empty list", "prompt")
        _check_rows(len(prompts) * ask.n)
        every, outlines = await self.off_loop(encode, ask.num_bytes)
        kept_to = await self._kept_to(model, ask.constraint, ask)
        prepared = self._rows(model, every, ask, "prompt", kept_to=kept_to)
        self._service.outlines.note(ask.id, outlines, ask.session)
        return prepared

    async def _kept_to(
        self,
        model: Model,
        constraint: Constraint | None,
        ask: Ask,
        notes: tuple[str, ...] = (),
    ) -> _KeptTo:
        """Return what rows keep to, compiled, and what of it they do not."""
        if constraint is None:
            return _KeptTo(None, notes)
        if model.constraints is None:
            hint = "grammars are off (MLX_BUN_GRAMMAR=0), and the model was only told of it"
            return _KeptTo(None, (*notes, f"grammar not enforced: {constraint.field}: {hint}"))
        compiled = await model.constraints.compiled(constraint)
        grammar = model.constraints.row_grammar(constraint, compiled, model.card.stop_ids)
        if compiled.unenforced:
            named = ", ".join(ascii(place)[1:-1] for place in compiled.unenforced[:MAX_NAMED])
            notes = (*notes, f"{constraint.field}: not enforced: {named}")
        return _KeptTo(grammar, notes)

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

    def _rows(
        self,
        model: Model,
        prompts: Sequence[Sequence[TokenId]],
        ask: Ask,
        field: str,
        boundaries: tuple[int, ...] = (),
        kept_to: _KeptTo | None = None,
    ) -> Prepared:
        card = model.card
        _check_rows(len(prompts) * ask.n)
        stop = _checked_stop(ask.stop)
        params = sampling.resolve(
            (ask.sampling, self._service.server_defaults, card.defaults),
            vocab_size=card.vocab_size,
            fresh_seed=ask.fresh_seed if ask.attempt is None else ask.attempt.seed,
        )
        asked = ask.max_tokens if ask.max_tokens is not None else self._service.default_max_tokens
        specs: list[RequestSpec] = []
        filled = [tuple(ids) or _nothing(card, field) for ids in prompts]
        for prompt_ids in filled:
            room = _room(card, len(prompt_ids), field)
            for i in range(ask.n):
                specs.append(
                    RequestSpec(
                        RequestId(f"{ask.id}-{len(specs)}"),
                        prompt_ids,
                        room if asked is None else min(asked, room),
                        frozenset() if params.ignore_eos else card.stop_ids,
                        replace(params, seed=_seed(params.seed + i)),
                        stop,
                        session=ask.session,
                        boundaries=boundaries,
                        grammar=kept_to.grammar if kept_to is not None else None,
                    )
                )
        warnings = kept_to.warnings if kept_to is not None else ()
        return Prepared(
            model, tuple(filled), tuple(specs), stop, attempt=ask.attempt, warnings=warnings
        )


@asynccontextmanager
async def generate(service: Service, prepared: Prepared) -> AsyncGenerator[Generation, None]:
    """Submit what was prepared, or attach to what runs under its key.  As `open_generation`."""
    tokenizer, text = prepared.model.tokenizer, prepared.text

    def completed(row: Row) -> None:
        if text is not None and prepared.model.cuts is not None:
            service.kept_ids = kept_ids.remember(
                service.kept_ids, tokenizer, text, row.spec.prompt_ids, row.said
            )

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


def template_arguments(
    effort: str | None, arguments: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return what a reasoning effort and a request's own arguments say to the template.

    The request's own win.  Raises Refused for those that would replace the conversation.
    """
    said = dict(arguments or {})
    for name in ("messages", "tools"):
        if name in said:
            field = f"chat_template_kwargs.{name}"
            raise Refused("invalid_value", f"{field} cannot be set: use the field {name}", field)
    if said.get("add_generation_prompt", True) is not True:
        field = "chat_template_kwargs.add_generation_prompt"
        raise Refused(
            "unsupported", f"{field} cannot be false: a prompt ends where the answer begins", field
        )
    if effort is None:
        return said
    return {"enable_thinking": effort != "none", "reasoning_effort": effort, **said}


def _hint(model: Model, constraint: Constraint | None, forced: ForcedCall | None) -> str | None:
    """Return what a model is told whose answers nothing enforces."""
    if model.constraints is not None:
        return None
    if constraint is not None:
        return hint_of(constraint.wanted)
    if forced is None:
        return None
    name = forced.name
    return f"Answer by calling {f'the tool {name}' if name else 'one of the tools'}."


def _stops(model: Model) -> frozenset[str]:
    """Return the spellings of the tokens that end an answer."""
    spelled = map(model.tokenizer.token_bytes, model.card.stop_ids)
    return frozenset(token.decode(errors="replace") for token in spelled)


def _render(model: Model, chat: Chat, hint: str | None) -> tuple[list[Turn], str]:
    """Return the turns of a conversation, a hint before them, and its prompt."""
    try:
        turns = normalise(chat.messages, model_id=model.card.id)
        if hint is not None:
            turns = [{"role": "system", "content": hint}, *turns]
        return turns, model.tokenizer.render_chat(turns, chat.tools, chat.arguments)
    except RecursionError:
        raise Refused("invalid_value", "the request nests too deeply", "messages") from None


def _encode_prompt(
    model: Model, prompt: str | Sequence[int], index: int, suffix: str | None
) -> list[TokenId]:
    if isinstance(prompt, str):
        if not suffix:
            return _encode(model, prompt, add_special=True)
        ids = model.tokenizer.fill_in_middle(prompt, suffix)
        if ids is None:
            message = "this model cannot fill in the middle: leave suffix out"
            raise Refused("unsupported", message, "suffix")
        return ids
    field = f"prompt[{index}]"
    if suffix:
        raise Refused("unsupported", "suffix needs a prompt of text, not of token ids", "suffix")
    if not prompt:
        raise Refused("invalid_value", f"{field} has no tokens", field)
    vocab_size = model.card.vocab_size
    bad = next((i for i, token_id in enumerate(prompt) if not 0 <= token_id < vocab_size), None)
    if bad is not None:
        message = f"{prompt[bad]} is not a token id; the vocabulary has {vocab_size} tokens"
        raise Refused("invalid_value", message, f"{field}[{bad}]")
    return list(map(TokenId, prompt))


def _encode(model: Model, text: str, *, add_special: bool) -> list[TokenId]:
    """Encode `text`; a text far beyond the window is refused before it costs its size."""
    if len(text) > 2 * SLICE_CHARS:
        _check_length(model.tokenizer, text, model.card.context_window)
    return model.tokenizer.encode(text, add_special=add_special)


def _check_length(tokenizer: Tokenizer, text: str, window: int) -> None:
    num_tokens = tokens_at_least(tokenizer, text, window)
    if num_tokens > window:
        raise _too_long(window, num_tokens, "messages")


def tokens_at_least(tokenizer: Tokenizer, text: str, enough: int) -> int:
    """Return a count of tokens that `text` surely has; counting ends above `enough`."""
    num_tokens = 0
    for at in range(0, len(text), SLICE_CHARS):
        # A cut may split words, which costs a few tokens more than the whole text has.
        num_tokens += len(tokenizer.encode(text[at : at + SLICE_CHARS], add_special=False)) - 16
        if num_tokens > enough:
            break
    return num_tokens


def _room(card: ModelCard, num_prompt_tokens: int, field: str) -> int:
    room = card.context_window - num_prompt_tokens
    if room < 1:
        raise _too_long(card.context_window, num_prompt_tokens, field)
    return room


def _too_long(window: int, num_tokens: int, field: str) -> Refused:
    """Return the refusal of a prompt of at least `num_tokens`, in the words that clients look for.

    Anthropic's read both numbers, to know how much to leave out; one token is for the answer.
    """
    return Refused(
        "context_length_exceeded",
        f"prompt is too long: {num_tokens} tokens > {window - 1} maximum; this model's maximum "
        f"context length is {window} tokens, prompt and answer together",
        field,
    )


def _nothing(card: ModelCard, field: str) -> tuple[TokenId, ...]:
    """Return the prompt for an empty text: the end of a text before it."""
    if not card.stop_ids:
        raise Refused("invalid_value", "the prompt is empty, and this model needs a token", field)
    return (min(card.stop_ids),)


def _check_rows(num_rows: int) -> None:
    if num_rows > MAX_ROWS:
        raise Refused(
            "invalid_value",
            f"the request asks for {num_rows} answers at once (prompts times n); "
            f"at most {MAX_ROWS} are given",
            "n",
        )


def _checked_stop(stop: Sequence[str]) -> tuple[str, ...]:
    if len(stop) > MAX_STOP_STRINGS:
        raise Refused(
            "invalid_value",
            f"stop has {len(stop)} strings; at most {MAX_STOP_STRINGS} are looked for",
            "stop",
        )
    return tuple(string for string in stop if string)


def _seed(seed: int) -> int:
    """Return `seed` within 64 bits: the row after the last seed starts again."""
    return seed if seed < 1 << 64 else seed - (1 << 64)
