"""Ids to text, one at a time, for one row.

Most tokenizers spell bytes: a byte-level alphabet, or words with `<0xE2>` for what is rare.
Their tokens are joined as bytes and read as UTF-8, which is exact at every id.  Others (WordPiece
and the like) say text only of several tokens together, so a window of them is decoded.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlxbun.domain.sampling import TokenId
from mlxbun.domain.text import TokenDecoder

TokenReader = Callable[[str], bytes]
INCOMPLETE = "\ufffd"

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class ByteDecoder:
    """Joins the bytes of tokens, and holds back a character that is not complete.

    A space that begins the text stays: what was generated may continue a text.
    """

    def __init__(self, visible: Mapping[int, bytes]) -> None:
        """`visible` has every id: its bytes, none for special tokens."""
        self._visible = visible
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_id: TokenId) -> str:
        return self._utf8.decode(self._visible[token_id])

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowDecoder:
    """Decodes the newest tokens after those just shown, and shows what they add.

    `decode` gives the text of ids, without special tokens.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []  # what was shown last, then what was not yet
        self._num_shown = 0
        self._shown = ""

    def add(self, token_id: TokenId) -> str:
        self._window.append(token_id)
        text = self._decode(self._window)
        if len(text) <= len(self._shown) or text.endswith(INCOMPLETE):
            return ""
        return self._show(text)

    def flush(self) -> str:
        return self._show(self._decode(self._window))

    def _show(self, text: str) -> str:
        piece = text[len(self._shown) :]
        del self._window[: self._num_shown]
        self._num_shown = len(self._window)
        self._shown = self._decode(self._window)
        return piece


class SpellingDecoder:
    """Spells some special tokens; the rest is left to another decoder."""

    def __init__(self, decoder: TokenDecoder, spelled: Mapping[TokenId, str]) -> None:
        self._decoder = decoder
        self._spelled = spelled

    def add(self, token_id: TokenId) -> str:
        spelling = self._spelled.get(token_id)
        if spelling is None:
            return self._decoder.add(token_id)
        return self._decoder.flush() + spelling

    def flush(self) -> str:
        return self._decoder.flush()


def token_reader(decoder: Mapping[str, Any] | None) -> TokenReader | None:
    """Return what gives a token's bytes from its spelling; None where single tokens have none.

    `decoder` is the decoder of a tokenizer.json.
    """
    steps = _steps(decoder)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level
    replacements: list[tuple[str, str]] = []
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": old}, "content": new}:
                replacements.append((old, new))
            case {"type": "Metaspace", "replacement": old}:
                replacements.append((old, " "))
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case {"type": "Strip", "content": " "} if "Fuse" in kinds:
                pass  # the space that begins the text, which is kept
            case _:
                return None
    if not replacements:
        return None
    return _Pieces(tuple(replacements), bytes_too="ByteFallback" in kinds)


class _Pieces:
    """Reads tokens that spell words, with a sign for the space, and maybe single bytes."""

    def __init__(self, replacements: tuple[tuple[str, str], ...], *, bytes_too: bool) -> None:
        self._replacements = replacements
        self._bytes_too = bytes_too

    def __call__(self, token: str) -> bytes:
        if self._bytes_too and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        for old, new in self._replacements:
            token = token.replace(old, new)
        return token.encode()


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _alphabet() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for.

    Source: Radford et al., GPT-2, 2019: printable Latin-1 stands for itself, the other bytes
    for the letters from U+0100 on.
    """
    themselves = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in themselves]
    return {chr(byte): byte for byte in themselves} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }


_ALPHABET = _alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_ALPHABET[letter] for letter in token])
    except KeyError:  # an added token, which is spelled as it is
        return token.encode()
