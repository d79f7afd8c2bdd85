"""The table of paths: what each one answers with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mlxbun.adapters.http.answers import Answer
from mlxbun.adapters.http.anthropic_messages import CountTokens, Messages
from mlxbun.adapters.http.cache import Cache
from mlxbun.adapters.http.cache_sessions import CacheSessions
from mlxbun.adapters.http.conversations import Conversations
from mlxbun.adapters.http.in_flight import InFlight
from mlxbun.adapters.http.models import Models
from mlxbun.adapters.http.openai_chat import ChatCompletions
from mlxbun.adapters.http.openai_completions import TextCompletions
from mlxbun.adapters.http.openai_embeddings import TextEmbeddings
from mlxbun.adapters.http.openapi import document
from mlxbun.adapters.http.request import Request
from mlxbun.adapters.http.responses import Responses
from mlxbun.adapters.http.routing import Routes
from mlxbun.adapters.http.status import Status
from mlxbun.application.embedding import Embedding
from mlxbun.application.prepare import Preparer
from mlxbun.application.responses_store import ResponsesStore
from mlxbun.application.service import Service

ENDPOINTS = [
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/embeddings",
    "POST /v1/responses",
    "POST /v1/responses/input_tokens",
    "GET /v1/responses/{id}",
    "DELETE /v1/responses/{id}",
    "POST /v1/responses/{id}/cancel",
    "GET /v1/responses/{id}/input_items",
    "POST /v1/conversations",
    "GET /v1/conversations/{id}",
    "POST /v1/conversations/{id}",
    "DELETE /v1/conversations/{id}",
    "GET /v1/conversations/{id}/items",
    "POST /v1/conversations/{id}/items",
    "GET /v1/conversations/{id}/items/{item}",
    "DELETE /v1/conversations/{id}/items/{item}",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "GET /v1/models",
    "GET /v1/models/{id}",
    "GET /v1",
    "GET /v1/effective-config",
    "GET /health",
    "GET /stats",
    "GET /v1/cache/explain",
    "POST /admin/cache/flush",
    "POST /admin/cache/session/close",
    "GET /openapi.json",
]


def routes(
    service: Service,
    draining: Callable[[], bool],
    template_arguments: Mapping[str, Any],
    load_seconds: float,
    in_flight: InFlight,
) -> Routes:
    preparer = Preparer(service, load_seconds=load_seconds)
    models = Models(preparer)
    store = ResponsesStore()
    responses = Responses(service, preparer, store, in_flight, template_arguments)
    status = Status(service, draining, ENDPOINTS, store.report)
    cache = Cache(service)
    return {
        "/": {"GET": status.about},
        "/health": {"GET": status.health},
        "/stats": {"GET": status.stats},
        "/admin/cache/flush": {"POST": cache.flush},
        "/admin/cache/session/close": {"POST": CacheSessions(service).close},
        "/openapi.json": {"GET": _openapi},
        "/v1": {"GET": status.about},
        "/v1/cache/explain": {"GET": cache.explain},
        "/v1/effective-config": {"GET": status.effective_config},
        "/v1/models": {"GET": models.list},
        "/v1/models/*": {"GET": models.retrieve},
        "/v1/chat/completions": {"POST": ChatCompletions(service, preparer, template_arguments)},
        "/v1/completions": {"POST": TextCompletions(service, preparer)},
        "/v1/embeddings": {"POST": TextEmbeddings(Embedding(service, preparer))},
        **responses.routes,
        **Conversations(store).routes,
        "/v1/messages": {"POST": Messages(service, preparer, template_arguments)},
        "/v1/messages/count_tokens": {"POST": CountTokens(preparer, template_arguments)},
    }


async def _openapi(request: Request) -> Answer:
    return Answer(200, msgspec.json.format(msgspec.json.encode(document())))
