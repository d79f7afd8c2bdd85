"""Conversations of OpenAI's protocol: lists of items that responses begin with and are added to.

They live where responses are kept, as long, and within the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mlxbun.adapters.http.answers import Answer, json_answer
from mlxbun.adapters.http.item_pages import listed, page_of
from mlxbun.adapters.http.openai_request import new_id
from mlxbun.adapters.http.request import Request, decode
from mlxbun.adapters.http.responses_request import known
from mlxbun.adapters.http.routing import Routes
from mlxbun.application.responses_store import Conversation, ResponsesStore
from mlxbun.domain.conversation.response_items import Item, input_items, translate
from mlxbun.domain.conversation.response_tools import ResponseTools
from mlxbun.domain.refusal import Refused


class ConversationRequest(Struct, frozen=True):
    items: list[dict[str, Any]] | None = None
    metadata: dict[str, str] | None = None


class ItemsRequest(Struct, frozen=True):
    items: list[dict[str, Any]]


class MetadataRequest(Struct, frozen=True):
    metadata: dict[str, str] | None


class ConversationAnswer(Struct, frozen=True):
    id: str
    created_at: int
    metadata: dict[str, str]
    object: Literal["conversation"] = "conversation"


class ConversationDeleted(Struct, frozen=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


class Conversations:
    """Answers for the conversations in `store`."""

    def __init__(self, store: ResponsesStore, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now
        self._create = msgspec.json.Decoder(ConversationRequest)
        self._update = msgspec.json.Decoder(MetadataRequest)
        self._items = msgspec.json.Decoder(ItemsRequest)

    @property
    def routes(self) -> Routes:
        one = "/v1/conversations/{id}"
        return {
            "/v1/conversations": {"POST": self.create},
            one: {"GET": self.retrieve, "POST": self.update, "DELETE": self.delete},
            f"{one}/items": {"GET": self.list_items, "POST": self.add_items},
            f"{one}/items/{{item}}": {"GET": self.item, "DELETE": self.delete_item},
        }

    async def create(self, request: Request) -> Answer:
        body = decode(self._create, request.body or b"{}")
        items = self._understood(body.items or [])
        made = Conversation(new_id("conv_"), int(self._now()), body.metadata or {}, [])
        return self._kept(made.with_items(items), "items")

    async def retrieve(self, request: Request) -> Answer:
        return json_answer(_shown(self._find(request)))

    async def update(self, request: Request) -> Answer:
        """Replace the metadata."""
        body = decode(self._update, request.body)
        changed = replace(self._find(request), metadata=body.metadata or {})
        return self._kept(changed, "metadata")

    async def delete(self, request: Request) -> Answer:
        self._store.delete_conversation(_segment(request, 3))
        return json_answer(ConversationDeleted(_segment(request, 3)))

    async def list_items(self, request: Request) -> Answer:
        """List items, the latest first unless `order` is asc."""
        return json_answer(page_of(self._find(request).items, parse_qs(request.head.query)))

    async def add_items(self, request: Request) -> Answer:
        """Add items at the end, but for those that are there already; list them all."""
        conversation = self._find(request)
        items = self._understood(decode(self._items, request.body).items)
        self._store.keep_conversation(conversation.with_items(items), "items")
        return json_answer(listed(items))

    async def item(self, request: Request) -> Answer:
        return json_answer(_item(self._find(request), request))

    async def delete_item(self, request: Request) -> Answer:
        conversation = self._find(request)
        gone = _item(conversation, request)
        rest = [item for item in conversation.items if item is not gone]
        return self._kept(replace(conversation, items=rest), "items")

    def _find(self, request: Request) -> Conversation:
        return self._store.conversation(_segment(request, 3), "id")

    def _kept(self, conversation: Conversation, field: str) -> Answer:
        self._store.keep_conversation(conversation, field)
        return json_answer(_shown(conversation))

    def _understood(self, said: list[dict[str, Any]]) -> list[Item]:
        """Return items as they are kept.  Raises Refused, naming `items[i]`, for what is none."""
        items = known(input_items(said, "items"), "items", self._store, new_id)
        translate(items, ResponseTools(), field="items")
        return items


def _shown(conversation: Conversation) -> ConversationAnswer:
    return ConversationAnswer(conversation.id, conversation.created_at, conversation.metadata)


def _item(conversation: Conversation, request: Request) -> Item:
    item_id = _segment(request, 5)
    for item in conversation.items:
        if item["id"] == item_id:
            return item
    message = f"Item with id '{item_id}' not found in conversation '{conversation.id}'."
    raise Refused("not_found", message, "item_id")


def _segment(request: Request, place: int) -> str:
    return request.head.path.split("/")[place]  # as the routes have it
