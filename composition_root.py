"""The composition root: settings in, application out.  The only file that names adapters.

    granian --interface rsgi mlxbun.composition_root:app     MLX_BUN_* variables configure it
    mlxbun serve                                             flags too, and a child for downloads

Importing this module opens nothing and imports next to nothing: what a command needs is
imported when it runs, so that `mlxbun --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxbun.adapters.cli.wiring import Wiring
    from mlxbun.adapters.http.rsgi import RsgiApp
    from mlxbun.adapters.ssd.store import SsdBlockStore
    from mlxbun.adapters.tokenizer.folder import FolderTokenizer
    from mlxbun.application.cache_folder import CacheFolder
    from mlxbun.application.checkpoints import Checkpoints
    from mlxbun.application.constraints import Constraints
    from mlxbun.application.diagnosis import Check
    from mlxbun.application.generation_disk import GenerationDisk, Report
    from mlxbun.application.model_store import LocalModel, ModelStore
    from mlxbun.application.persistence import Persistence
    from mlxbun.application.prefixes import Prefixes
    from mlxbun.application.service import EmbeddingModel, Model, Service, Setting
    from mlxbun.application.settings import Settings
    from mlxbun.domain.blocks import BlockInfo
    from mlxbun.domain.checkpoint import Identity
    from mlxbun.domain.sampling import TokenId
    from mlxbun.domain.scheduling import Limits
    from mlxbun.domain.steps import Compute
    from mlxbun.domain.text import ModelCard


def __getattr__(name: str) -> Any:
    """Make `app`, the RSGI application, when Granian first asks for it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = made = open_app(os.environ)
    return made


def main() -> int:
    """Run the command line: `mlxbun`, `mlx-bun`."""
    from mlxbun.adapters.cli.main import run

    return run(sys.argv[1:], os.environ, wiring())


def open_app(environ: Any) -> RsgiApp:
    """Return the application that `environ` configures.  Nothing is opened yet."""
    from mlxbun.adapters.http.parentage import end_with_parent
    from mlxbun.application.settings import ARGV, check, from_environment

    settings = from_environment(environ)
    check(settings)
    if ARGV in environ:
        end_with_parent()
    # Granian alone listens where its own flags say.
    container = make_container(settings, settings.address if ARGV in environ else "")
    made: RsgiApp = container.app()
    return made


def make_container(settings: Settings, address: str = "") -> Any:
    """Return the container of one process: providers of the journal, engine, service and app.

    `address` is where clients find the app, where that is known.
    """
    from dependency_injector import containers, providers

    from mlxbun.adapters.http.rsgi import RsgiApp
    from mlxbun.adapters.journal import RingJournal
    from mlxbun.application.engine import Engine

    class Container(containers.DeclarativeContainer):
        config = providers.Object(settings)
        journal = providers.Singleton(RingJournal, settings.journal_size)
        opening = providers.Singleton(Opening, settings)
        engine = providers.Singleton(
            Engine,
            opening.provided.compute,
            limits_of(settings),
            journal,
            leave_thread=leave_mlx,
            open_prefixes=opening.provided.prefixes,
            open_checkpoints=opening.provided.checkpoints,
        )
        service = providers.Singleton(make_service, settings, engine, opening)
        app = providers.Singleton(
            RsgiApp,
            service,
            max_body_bytes=settings.max_body_bytes,
            api_key=settings.api_key,
            allow_origins=settings.allow_origin,
            template_arguments=template_arguments_of(settings),
            keepalive_seconds=settings.keepalive_seconds,
            shutdown_seconds=settings.shutdown_timeout_seconds,
            address=address,
        )

    return Container()


def make_service(settings: Settings, engine: Any, opening: Opening) -> Service:
    from mlxbun.application.service import Service
    from mlxbun.application.settings import effective

    service = Service(
        engine,
        settings.sampling_defaults(),
        settings.max_tokens,
        lambda: effective(settings, opening.decided),
        lambda: opening.persistence,
        lambda: opening.generations,
    )
    opening.opened, opening.report = service.opened, engine.report
    return service


def limits_of(settings: Settings) -> Limits:
    from mlxbun.domain.scheduling import Limits

    return Limits(
        max_rows=settings.batch,
        max_waiting=settings.max_waiting,
        max_chunk_tokens=settings.prefill_chunk,
        adaptive_chunks=not settings.l1,
    )


def template_arguments_of(settings: Settings) -> dict[str, Any]:
    return {} if settings.thinking == "auto" else {"enable_thinking": settings.thinking == "on"}


class Opening:
    """Opens the model on the engine's thread: text side first, then weights.

    `decided` are the settings that the model and the machine decided.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.decided: list[Setting] = []
        self.opened: Callable[[Model, EmbeddingModel | None], None] = ignore
        self.report: Callable[[Report], None] = ignore
        self.persistence: Persistence | None = None
        self.generations: GenerationDisk | None = None
        self._store: SsdBlockStore | None = None
        self._compute: Compute | None = None
        self._identity: Identity | None = None

    def compute(self) -> Compute:
        """Return the model, ready.  Raises LoadFailed, saying what to do."""
        from mlxbun.application.requests import LoadFailed

        try:
            return self._open()
        except (LoadFailed, MemoryError):
            raise
        except Exception as error:  # mlx-lm raises what it likes for a folder that it cannot read
            name = self._settings.model
            raise LoadFailed(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error

    def _open(self) -> Compute:
        from mlxbun.adapters.mlx_compute.blas import load_fast_blas
        from mlxbun.application.service import Model, Setting

        settings = self._settings
        found = model_store(settings).resolve(settings.model, ignore)
        folder = Path(found.path)
        blas = load_fast_blas(settings.blas)

        from mlxbun.adapters.mlx_compute.embedding.recipe import is_embedding_model
        from mlxbun.adapters.mlx_compute.opening import open_mlx_compute
        from mlxbun.adapters.tokenizer.folder import open_tokenizer
        from mlxbun.adapters.tokenizer.model_card import read_card
        from mlxbun.domain.conversation.markup import family_of

        blas_note = " ".join(filter(None, (blas.path, blas.note)))
        self.decided.append(Setting("blas", blas.kind, "machine", blas_note))
        if is_embedding_model(folder, found.name):
            return self._open_alone(found)
        card = read_card(folder, settings.served_name or found.name)
        tokenizer = open_tokenizer(folder)
        family = family_of(tokenizer.template, lambda t: tokenizer.token_id(t) is not None)
        stops = (tokenizer.token_id(stop) for stop in family.stops)
        card = with_stops(card, {i for i in stops if i is not None})
        card = capped(card, settings.context_length)
        opened = open_mlx_compute(
            folder,
            dtype=settings.dtype,
            l1=settings.l1,
            vocab_size=card.vocab_size,
            xtc_exempt={*card.stop_ids, *tokenizer.encode("\n", add_special=False)},
        )
        self.decided += [
            Setting("model_folder", str(folder), "model", found.weights),
            Setting("context_window", card.context_window, "model", "tokens, answer included"),
            Setting("markup", family.name, "model", "the notation in which calls are read"),
            *(Setting(n.name, n.value, "machine", n.why) for n in opened.notes),
        ]
        # Under --l1 prompts are cut and encoded as mlx-lm does, whatever was kept of others.
        keeps = settings.prompt_cache_gigabytes and not settings.l1
        cuts = opened.compute.cuts if keeps else None
        constraints = make_constraints(tokenizer, card) if settings.grammar else None
        model = Model(card, tokenizer, (settings.model,), cuts, family, constraints)
        self.opened(model, self._open_beside(model))
        self._compute = opened.compute
        if settings.prompt_cache_gigabytes and settings.ssd_cache:
            self._identity = identity_of(folder, settings, opened.numerics)
        return opened.compute

    def _open_beside(self, model: Model) -> EmbeddingModel | None:
        """Open the model that embeds beside `model`, if there is to be one."""
        from mlxbun.application.requests import LoadFailed

        name = self._settings.embedding_model
        if name is None:
            return None
        found = model_store(self._settings).resolve(name, ignore)
        embedding, _, decided = open_embedding(self._settings, found, found.name, name)
        self.decided += decided
        if embedding.card.id == model.card.id:
            why = "say --served-name, so that clients can tell them apart"
            raise LoadFailed(f"both models are called {model.card.id}: {why}")
        return embedding

    def _open_alone(self, found: LocalModel) -> Compute:
        """Open a model that embeds as the only one."""
        from mlxbun.adapters.mlx_compute.rowless import RowlessCompute
        from mlxbun.application.requests import LoadFailed
        from mlxbun.application.service import Model

        settings = self._settings
        if settings.embedding_model is not None:
            message = f"{found.name} embeds itself: serve it without --embedding-model"
            raise LoadFailed(message)
        called = settings.served_name or found.name
        embedding, num_bytes, decided = open_embedding(
            settings, found, called, settings.model, settings.context_length
        )
        self.decided += decided
        card, tokenizer, aliases = embedding.card, embedding.tokenizer, embedding.aliases
        self.opened(Model(card, tokenizer, aliases, answers=False), embedding)
        return RowlessCompute(num_bytes)

    def prefixes(self) -> Prefixes | None:
        """Return the prefix cache of the model that was opened; None if it is off."""
        from mlxbun.application.prefixes import Prefixes
        from mlxbun.application.service import Setting
        from mlxbun.domain.blocks import Namespace
        from mlxbun.domain.residency import Budget

        settings = self._settings
        ram_bytes = int(settings.prompt_cache_gigabytes * 2**30)
        if not ram_bytes:
            if settings.ssd_cache:
                why = "--prompt-cache is 0, and what is not kept in RAM is not written either"
                self.decided.append(Setting("ssd_tier", "off", "machine", why))
            return None
        identity, compute = self._identity, self._compute
        if compute is None:  # it only embeds
            return None
        in_ram = Budget(ram_bytes, False, settings.cache_retention)
        if identity is None:  # nothing of it outlives this process
            return Prefixes(Namespace("00" * 32), in_ram)
        store, known, why = open_store(settings, identity)
        note = Setting("ssd_tier", "on" if store is not None else "off", "machine", why)
        self.decided.append(note)
        if store is None:
            return Prefixes(identity.namespace, in_ram)
        self._store = store
        self.persistence = make_persistence(settings, store, identity, compute, self.report, known)
        idle_seconds = settings.ssd_demote_idle_seconds
        budget = Budget(ram_bytes, True, settings.cache_retention, idle_seconds)
        prefixes = Prefixes(identity.namespace, budget, self.persistence)
        self.report(lambda prefixes, compute: prefixes.opened(compute, known))
        return prefixes

    def checkpoints(self) -> Checkpoints | None:
        """Return what keeps checkpoints of answers; None without, or where the disk is off."""
        from mlxbun.application.checkpoints import Checkpoints
        from mlxbun.application.service import Setting

        every = self._settings.generation_checkpoint_tokens
        store, identity, compute = self._store, self._identity, self._compute
        if not every:
            return None
        if store is None or identity is None or compute is None:
            why = "the SSD tier is off"
        else:
            made, why = make_generations(store, identity, compute, self.report)
            if made is not None:
                self.generations = made
                return Checkpoints(every, made)
        note = Setting("generation_checkpoint_tokens", 0, "machine", why)
        self.decided.append(note)
        return None


def open_embedding(
    settings: Settings,
    found: LocalModel,
    called: str,
    alias: str,
    context_length: int | None = None,
) -> tuple[EmbeddingModel, int, list[Setting]]:
    """Open the embedding model `found` on the engine's thread.

    Returns its weights' bytes, too, and what was decided.  Raises LoadFailed, naming its folder.
    """
    from mlxbun.application.requests import LoadFailed

    try:
        return _open_embedding(settings, found, called, alias, context_length)
    except (LoadFailed, MemoryError):
        raise
    except Exception as error:  # loaders raise what they like for a folder that they cannot read
        why = f"{type(error).__name__}: {error}"
        raise LoadFailed(f"the embedding model {found.path} cannot be loaded: {why}") from error


def _open_embedding(
    settings: Settings,
    found: LocalModel,
    called: str,
    alias: str,
    context_length: int | None = None,
) -> tuple[EmbeddingModel, int, list[Setting]]:
    import msgspec

    from mlxbun.adapters.mlx_compute.embedding.opening import open_embedder
    from mlxbun.adapters.mlx_compute.embedding.recipe import read_recipe
    from mlxbun.adapters.tokenizer.folder import open_tokenizer
    from mlxbun.adapters.tokenizer.model_card import read_card
    from mlxbun.application.service import EmbeddingModel, Setting
    from mlxbun.domain.embedding import EmbeddingCard

    folder = Path(found.path)
    recipe, tokenizer = read_recipe(folder), open_tokenizer(folder)
    card = capped(read_card(folder, called), context_length)
    max_tokens = min(card.context_window, recipe.max_tokens or card.context_window)
    opened = open_embedder(folder, recipe, settings.dtype)
    end = tokenizer.token_id(recipe.suffix_token or "")
    ends_itself = end in tokenizer.encode("", add_special=True)[-1:]
    embedding = EmbeddingModel(
        msgspec.structs.replace(card, context_window=max_tokens),
        EmbeddingCard(opened.dimensions, max_tokens, recipe.instructed),
        tokenizer,
        opened.embedder,
        (alias,),
        recipe.prefix,
        () if end is None or ends_itself else (end,),
        recipe.lower_case,
        settings.batch + settings.max_waiting,
    )
    decided = [
        Setting("embedding_folder", found.path, "model", found.weights),
        Setting("embedding_max_tokens", max_tokens, "model", "of one text"),
        *(Setting(n.name, n.value, "machine", n.why) for n in opened.notes),
    ]
    return embedding, opened.num_bytes, decided


def make_constraints(tokenizer: FolderTokenizer, card: ModelCard) -> Constraints:
    """Return what keeps answers of a model to what they should look like; loads nothing yet."""
    from mlxbun.adapters.grammar.compiler import Vocabulary, XGrammarCompiler
    from mlxbun.application.constraints import Constraints
    from mlxbun.domain.constraint import GrammarUnavailable

    def vocabulary() -> Vocabulary:
        tokens = tokenizer.vocabulary(card.vocab_size)
        if tokens is None:
            raise GrammarUnavailable("this model's tokenizer cannot be constrained")
        return Vocabulary(tokens, card.vocab_size, card.stop_ids, tokenizer.special_tokens())

    return Constraints(XGrammarCompiler(vocabulary), tokenizer.token_bytes)


def identity_of(folder: Path, settings: Settings, numerics: str) -> Identity:
    from mlxbun.adapters.hub.fingerprint import file_digests
    from mlxbun.domain.checkpoint import Identity

    digests = file_digests(folder, Path(settings.cache).expanduser() / "digests.json")
    return Identity(digests, "plain", numerics)


def open_store(
    settings: Settings, identity: Identity
) -> tuple[SsdBlockStore | None, Sequence[BlockInfo], str]:
    """Open the SSD tier's folder and see what it has for this model.

    Without it the cache is in RAM only; the last item says why, or where the folder is.
    """
    import logging

    from mlxbun.adapters.ssd.opening import open_block_store
    from mlxbun.domain.blocks import StoreFailed

    assert settings.ssd_cache is not None
    budget = int(settings.ssd_write_budget_gigabytes * 2**30)
    store: SsdBlockStore | None = None
    try:
        store = open_block_store(
            Path(settings.ssd_cache),
            verify=settings.ssd_cache_verify,
            daily_budget_bytes=budget or None,
            layout=settings.ssd_layout,
        )
        store.describe(identity.namespace, identity.text)
        return store, store.known(identity.namespace), settings.ssd_cache
    except StoreFailed as error:
        logging.getLogger("mlxbun").warning("the SSD cache is off: %s", error)
        if store is not None:
            store.close()
        return None, (), str(error)


def make_persistence(
    settings: Settings,
    store: SsdBlockStore,
    identity: Identity,
    compute: Compute,
    report: Callable[[Report], None],
    known: Sequence[BlockInfo],
) -> Persistence:
    from mlxbun.application.persistence import Persistence

    max_bytes = int(settings.ssd_cache_max_gigabytes * 2**30)
    persistence = Persistence(
        store,
        identity.namespace,
        tensors=compute.tensors,
        report=report,
        max_bytes=max_bytes or None,
        known=known,
    )
    persistence.start()
    return persistence


def make_generations(
    store: SsdBlockStore,
    identity: Identity,
    compute: Compute,
    report: Callable[[Report], None],
) -> tuple[GenerationDisk | None, str]:
    """Return the disk of checkpoints, beside the blocks; without it, why."""
    import logging

    from mlxbun.application.generation_disk import GenerationDisk
    from mlxbun.domain.blocks import StoreFailed
    from mlxbun.domain.generation_checkpoint import private

    namespace = private(identity.namespace)
    disk = GenerationDisk(store.generations, namespace, tensors=compute.tensors, report=report)
    try:
        store.describe(namespace, f"interrupted answers of {identity.namespace[:12]}")
        disk.start()
    except StoreFailed as error:
        logging.getLogger("mlxbun").warning("checkpoints of answers are off: %s", error)
        return None, str(error)
    return disk, ""


def ignore(*_: object) -> None:
    """Hear of something, and do nothing."""


def leave_mlx() -> None:
    """Leave MLX on the engine's thread, if it was ever entered."""
    if "mlx.core" in sys.modules:
        from mlxbun.adapters.mlx_compute.opening import leave_thread

        leave_thread()


def with_stops(card: Any, stop_ids: set[TokenId]) -> Any:
    import msgspec

    return msgspec.structs.replace(card, stop_ids=card.stop_ids | stop_ids)


def capped(card: Any, context_length: int | None) -> Any:
    import msgspec

    if context_length is None:
        return card
    window = min(card.context_window, context_length)
    return msgspec.structs.replace(card, context_window=window)


def wiring() -> Wiring:
    """Return what the command line needs; nothing in it is made before it is used."""
    from mlxbun import __version__
    from mlxbun.adapters.cli.wiring import Wiring

    return Wiring(
        version=__version__,
        target="mlxbun.composition_root:app",
        command=(sys.executable, "-m", "mlxbun.composition_root"),
        model_store=model_store,
        open_service=open_service,
        machine_checks=machine_checks,
        bench=bench,
        open_cache_folder=open_cache_folder,
    )


def model_store(settings: Settings) -> ModelStore:
    from mlxbun.adapters.hub.demo import WeightType
    from mlxbun.adapters.hub.store import HubModelStore

    # numpy, which writes the demo's weights, has no bfloat16: loading casts to that.
    demo: WeightType | None = settings.dtype if settings.dtype in ("float32", "float16") else None
    return HubModelStore(Path(settings.cache), demo)


@asynccontextmanager
async def open_service(settings: Settings) -> AsyncGenerator[Service, None]:
    """Yield a service on the running event loop; leaving stops it."""
    import asyncio

    service: Service = make_container(settings).service()
    service.start(asyncio.get_running_loop().call_soon_threadsafe)
    try:
        yield service
    finally:
        service.stop()


def machine_checks(settings: Settings) -> Sequence[Check]:
    from mlxbun.adapters.mlx_compute.probe import machine_checks as checks

    return checks(settings.blas)


def open_cache_folder(folder: Path) -> CacheFolder:
    from mlxbun.adapters.ssd.opening import open_block_store

    return open_block_store(folder)


def bench(words: Sequence[str]) -> int:
    from mlxbun.adapters.bench.command import run

    return run(words)


if __name__ == "__main__":
    sys.exit(main())
