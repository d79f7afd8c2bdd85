"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import sys
from array import array
from typing import Annotated, Any, Literal

import anyio.lowlevel
import msgspec
from msgspec import Meta, Struct

from mlxbun.adapters.http.answers import JSON, Answer
from mlxbun.adapters.http.fields import EMBEDDINGS, refuse_unsupported
from mlxbun.adapters.http.openai_request import texts_or_ids
from mlxbun.adapters.http.request import Request, decode
from mlxbun.application.embedding import Embedding, EmbeddingAsk
from mlxbun.domain.conversation import well_formed

PER_BREATH = 16  # vectors that are written before others have their turn on the event loop

Input = Annotated[str | list[str | int | list[int]], Meta(extra_json_schema={"minItems": 1})]
Dimensions = Annotated[int, Meta(ge=1)]


class EmbeddingsRequest(Struct, frozen=True, kw_only=True):
    input: Input
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Dimensions | None = None
    instruction: str | None = None
    truncate_prompt_tokens: Any = None


class EmbeddingItem(Struct, frozen=True, kw_only=True):
    """`embedding` as text is base64 of float32, the lowest byte first."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingsUsage


class TextEmbeddings:
    """Turns texts into vectors."""

    def __init__(self, embedding: Embedding) -> None:
        self._embedding = embedding
        self._decoder = msgspec.json.Decoder(EmbeddingsRequest)

    async def __call__(self, request: Request) -> Answer:
        body = decode(self._decoder, request.body)
        refuse_unsupported(EMBEDDINGS, body)
        model = await self._embedding.model(body.model)
        ask = EmbeddingAsk(
            texts_or_ids(body.input, "input"),
            body.dimensions,
            well_formed(body.instruction) if body.instruction else None,
            len(request.body),
        )
        made = await self._embedding.embed(model, ask)
        items: list[msgspec.Raw] = []
        for index, vector in enumerate(made.vectors):
            said = _base64(vector) if body.encoding_format == "base64" else vector.tolist()
            items.append(msgspec.Raw(_encode(EmbeddingItem(index=index, embedding=said))))
            if index % PER_BREATH == PER_BREATH - 1:
                await anyio.lowlevel.checkpoint()
        usage = EmbeddingsUsage(made.num_tokens, made.num_tokens)
        whole = {"object": "list", "data": items, "model": model.card.id, "usage": usage}
        return Answer(200, _encode(whole), JSON)


_encode = msgspec.json.Encoder().encode


def _base64(vector: array[float]) -> str:
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()
