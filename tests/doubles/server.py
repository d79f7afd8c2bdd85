"""The HTTP adapter over the doubles, as an application that Granian can run.

The environment says how slow the model is and what the server is told (see `app`).
"""

from __future__ import annotations

import logging
import os
import time

import msgspec

from doubles.compute import ScriptedCompute
from doubles.embedder import SIZES, ScriptedEmbedder
from doubles.grammar import TextsCompiler
from doubles.journal import ListJournal
from doubles.tokenizer import EOS, VOCAB_SIZE, ByteTokenizer
from mlxbun.adapters.http.rsgi import RsgiApp
from mlxbun.application.constraints import Constraints
from mlxbun.application.engine import Engine
from mlxbun.application.model_store import LoadFailed
from mlxbun.application.options import Setting
from mlxbun.application.service import EmbeddingModel, Model, Service
from mlxbun.domain.constraint import GrammarCompiler
from mlxbun.domain.conversation.markup import Family, family_of
from mlxbun.domain.sampling import TokenId
from mlxbun.domain.sampling_policy import SamplingRequest
from mlxbun.domain.scheduling import Limits
from mlxbun.domain.text import ModelCard

MODEL_ID = "doubles/scripted"
EMBEDDING_ID = "doubles/scripted-embed"
MAX_EMBEDDING = 4  # requests that wait at once
# Thoughts stand between <think> and </think>, calls are JSON between <tool_call> and </tool_call>.
THINKING = family_of("</think><tool_call>", lambda _: False)
CREATED = 1_700_000_000


def card(context_window: int = 4096, stop_ids: frozenset[TokenId] = frozenset({EOS})) -> ModelCard:
    return ModelCard(
        id=MODEL_ID,
        model_type="scripted",
        context_window=context_window,
        vocab_size=VOCAB_SIZE,
        stop_ids=stop_ids,
        created=CREATED,
        defaults=SamplingRequest(top_k=20),
    )


def embedding_model(embedder: ScriptedEmbedder) -> EmbeddingModel:
    sized = msgspec.structs.replace(card(SIZES.max_tokens), id=EMBEDDING_ID)
    return EmbeddingModel(
        sized, SIZES, ByteTokenizer(), embedder, ("the-embedder",), max_waiting=MAX_EMBEDDING
    )


def service(
    *,
    step_seconds: float = 0.0,
    prompt_token_seconds: float = 0.0,
    load_seconds: float = 0.0,
    load_failure: str = "",
    limits: Limits | None = None,
    context_window: int = 4096,
    family: Family = THINKING,
    grammars: GrammarCompiler | None = None,
    enforces: bool = True,
    embedder: ScriptedEmbedder | None = None,
    answers: bool = True,
) -> Service:
    """Return a service whose model is scripted; it is not started.

    What answers must look like, `grammars` compiles; nobody unless it `enforces`.  With an
    `embedder`, texts are embedded, beside the model that `answers` or by the only one.
    """

    def open_compute() -> ScriptedCompute:
        time.sleep(load_seconds)
        if load_failure:
            raise LoadFailed(load_failure)
        tokenizer = ByteTokenizer()
        constraints = Constraints(grammars or TextsCompiler(), tokenizer.token_bytes)
        embedding = embedding_model(embedder) if embedder is not None else None
        model = Model(
            card(context_window),
            tokenizer,
            family=family,
            constraints=constraints if enforces else None,
        )
        if embedding is not None and not answers:
            model = Model(embedding.card, tokenizer, embedding.aliases, answers=False)
        made.opened(model, embedding)
        return ScriptedCompute(step_seconds=step_seconds, prompt_token_seconds=prompt_token_seconds)

    def settings() -> list[Setting]:
        return [Setting("batch", 8, "default"), Setting("api_key", "set", "flag", "never shown")]

    engine = Engine(open_compute, limits or Limits(), ListJournal())
    made = Service(engine, SamplingRequest(), None, settings)
    return made


def app() -> RsgiApp:
    """Return the application that the variables DOUBLE_* describe (a factory for Granian)."""

    def said(name: str, default: float) -> float:
        return float(os.environ.get(f"DOUBLE_{name}", default))

    logging.basicConfig(level=logging.INFO)

    return RsgiApp(
        service(
            step_seconds=said("STEP_SECONDS", 0.0),
            prompt_token_seconds=said("PROMPT_TOKEN_SECONDS", 0.0),
            load_seconds=said("LOAD_SECONDS", 0.0),
            load_failure=os.environ.get("DOUBLE_LOAD_FAILURE", ""),
            limits=Limits(
                max_rows=int(said("MAX_ROWS", 8)), max_waiting=int(said("MAX_WAITING", 64))
            ),
            context_window=int(said("CONTEXT_WINDOW", 4096)),
            embedder=ScriptedEmbedder() if said("EMBEDS", 0) else None,
        ),
        max_body_bytes=int(said("MAX_BODY_BYTES", 64_000_000)),
        api_key=os.environ.get("DOUBLE_API_KEY"),
        allow_origins=tuple(filter(None, os.environ.get("DOUBLE_ORIGINS", "").split(","))),
        keepalive_seconds=said("KEEPALIVE_SECONDS", 10.0),
        body_seconds=said("BODY_SECONDS", 30.0),
        shutdown_seconds=said("SHUTDOWN_SECONDS", 120.0),
    )
