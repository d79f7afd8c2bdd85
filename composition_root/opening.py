"""Opening what a server serves, on the engine's thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mlxbun.composition_root.disk import identity_of, make_generations, make_persistence, open_store
from mlxbun.composition_root.embedding import open_embedding
from mlxbun.composition_root.models import capped, model_store, with_stops

if TYPE_CHECKING:
    from mlxbun.adapters.ssd.store import SsdBlockStore
    from mlxbun.adapters.tokenizer.folder import FolderTokenizer
    from mlxbun.application.checkpoints import Checkpoints
    from mlxbun.application.constraints import Constraints
    from mlxbun.application.generation_disk import GenerationDisk, Report
    from mlxbun.application.model_store import LocalModel
    from mlxbun.application.options import Setting
    from mlxbun.application.persistence import Persistence
    from mlxbun.application.prefixes import Prefixes
    from mlxbun.application.service import EmbeddingModel, Model
    from mlxbun.application.settings import Settings
    from mlxbun.domain.checkpoint import Identity
    from mlxbun.domain.steps import Compute
    from mlxbun.domain.text import ModelCard


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
        from mlxbun.application.model_store import LoadFailed

        try:
            return self._open()
        except (LoadFailed, MemoryError):
            raise
        except Exception as error:  # mlx-lm raises what it likes for a folder that it cannot read
            name = self._settings.model
            raise LoadFailed(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error

    def _open(self) -> Compute:
        from mlxbun.adapters.mlx_compute.blas import load_fast_blas
        from mlxbun.application.options import Setting
        from mlxbun.application.service import Model

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
        if settings.embedding_model == settings.model or is_embedding_model(folder, found.name):
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
            kernels=Path(settings.cache).expanduser() / "kernels",
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
        from mlxbun.application.model_store import LoadFailed

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
        from mlxbun.application.model_store import LoadFailed
        from mlxbun.application.service import Model

        settings = self._settings
        if settings.embedding_model not in (None, settings.model):
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
        from mlxbun.application.options import Setting
        from mlxbun.application.prefixes import Prefixes
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
        store, known, rate, why = open_store(settings, identity)
        note = Setting("ssd_tier", "on" if store is not None else "off", "machine", why)
        self.decided.append(note)
        if store is None:
            return Prefixes(identity.namespace, in_ram)
        self._store = store
        self.persistence = make_persistence(settings, store, identity, compute, self.report, known)
        budget = Budget(
            ram_bytes,
            True,
            settings.cache_retention,
            idle_seconds=settings.ssd_demote_idle_seconds,
            tails_to_ssd=settings.ssd_layout == "blocks",
        )
        prefixes = Prefixes(identity.namespace, budget, self.persistence)
        self.report(lambda blocks, compute: blocks.opened(compute, known, rate))
        return prefixes

    def checkpoints(self) -> Checkpoints | None:
        """Return what keeps checkpoints of answers; None without, or where the disk is off."""
        from mlxbun.application.checkpoints import Checkpoints
        from mlxbun.application.options import Setting

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
                return Checkpoints(every, made, identity.namespace)
        note = Setting("generation_checkpoint_tokens", 0, "machine", why)
        self.decided.append(note)
        return None


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


def ignore(*_: object) -> None:
    """Hear of something, and do nothing."""
