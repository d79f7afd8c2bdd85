"""A tokenizer whose tokens are bytes, and a chat template of one line a message."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import TokenId

BOS = TokenId(256)
EOS = TokenId(257)
MIDDLE = TokenId(258)
VOCAB_SIZE = 259
SPECIAL = {"<bos>": BOS, "<end>": EOS, "<middle>": MIDDLE}
_SPELLED = {token_id: spelling for spelling, token_id in SPECIAL.items()}
_SPLIT = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")


class ByteDecoder:
    """Port TokenDecoder: holds incomplete UTF-8 back."""

    def __init__(self, shown: frozenset[str] = frozenset()) -> None:
        self._shown = shown
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_id: TokenId) -> str:
        if token_id < BOS:
            return self._utf8.decode(bytes([token_id]))
        spelled = _SPELLED[token_id]
        return self.flush() + spelled if spelled in self._shown else ""

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class ByteTokenizer:
    """Port Tokenizer.  A message that says `[template refuses]` is refused by the template."""

    def __init__(self, *, adds_bos: bool = True, fills_in_middle: bool = True) -> None:
        self._adds_bos = adds_bos
        self._fills_in_middle = fills_in_middle

    def encode(self, text: str, *, add_special: bool) -> list[TokenId]:
        ids = [BOS] if add_special and self._adds_bos else []
        for part in _SPLIT.split(text):
            ids += [SPECIAL[part]] if part in SPECIAL else map(TokenId, part.encode())
        return ids

    def decoder(self, shown: frozenset[str] = frozenset()) -> ByteDecoder:
        return ByteDecoder(shown)

    def token_bytes(self, token_id: TokenId) -> bytes:
        return bytes([token_id]) if token_id < BOS else _SPELLED[token_id].encode()

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        lines = [f"tools: {json.dumps(list(tools))}\n"] if tools else []
        if arguments:
            lines.append(f"arguments: {json.dumps(dict(arguments))}\n")
        for message in messages:
            if "[template refuses]" in str(message.get("content")):
                raise Refused("invalid_value", "the chat template says: no", "messages")
            lines.append(f"{message['role']}: {message.get('content') or ''}\n")
        thought = "<think>\n" if (arguments or {}).get("opens_thought") else ""
        return "".join(lines) + "assistant: " + thought

    def fill_in_middle(self, prefix: str, suffix: str) -> list[TokenId] | None:
        if not self._fills_in_middle:
            return None
        encode = self.encode
        return [BOS, *encode(prefix, add_special=False), MIDDLE, *encode(suffix, add_special=False)]
