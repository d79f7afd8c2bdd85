"""The text side of a model folder: its tokenizer, its chat template, its special tokens.

Read with the `tokenizers` library.  A folder without tokenizer.json (SentencePiece, tekken) is
converted by transformers, whose import takes seconds and happens only then.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, Tokenizer

from mlxbun.adapters.tokenizer.chat_template import DEFAULT, ChatTemplate, transcript
from mlxbun.adapters.tokenizer.decoding import (
    ByteDecoder,
    SpellingDecoder,
    WindowDecoder,
    token_reader,
)
from mlxbun.adapters.tokenizer.fill_in_middle import fill_in_middle
from mlxbun.domain.conversation import well_formed
from mlxbun.domain.sampling import TokenId
from mlxbun.domain.text import TokenDecoder

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
                 "mask_token")  # fmt: skip
_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_THINKING = (
    ("<think>", "</think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|think:start|>", "<|think:end|>"),
    ("<|channel>", "<channel|>"),
)


def open_tokenizer(folder: Path) -> FolderTokenizer:
    """Open what `folder` has.  Raises ValueError naming the file that cannot be read."""
    path = folder / "tokenizer.json"
    config = read_object(folder / "tokenizer_config.json")
    if path.exists():
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"{path} cannot be read: {error}") from error
    else:
        tokenizer = _converted(folder)
    return FolderTokenizer(tokenizer, config, _template_sources(folder, config))


class FolderTokenizer:
    """A model's tokenizer and chat template.

    What stands around a bare text (BOS) is what tokenizer.json says; add_bos_token of
    tokenizer_config.json counts for nothing, as in transformers 5.

    Encoding takes about 1 ms per 1,000 characters and lets other threads run: an event loop
    encodes texts of more than some 8,000 characters in a worker thread.

    A model without a chat template gets a transcript, "User: ...", that ends in "Assistant:".
    Thinking is on unless the arguments say otherwise, where the model knows how, as in mlx-lm.
    """

    def __init__(
        self, tokenizer: Tokenizer, config: Mapping[str, Any], templates: Mapping[str, str]
    ) -> None:
        """Take ownership of `tokenizer`; `config` is a tokenizer_config.json."""
        self._tokenizer = tokenizer
        named = {key: text for key in _NAMED_TOKENS if (text := token_text(config.get(key)))}
        _add_missing_tokens(tokenizer, config, named.values())
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._bos = self.token_id(named.get("bos_token", ""))
        thinks = any(None not in map(self.token_id, pair) for pair in _THINKING)
        variables = {"enable_thinking": thinks, **named}
        self._template = ChatTemplate(templates, variables) if templates else None
        # The templates' own text, which says how the model writes.
        self.template = "\n".join(templates.values())
        self._fill = fill_in_middle(self.token_id)
        state = tokenizer.decoder.__getstate__() if tokenizer.decoder else b"null"
        self._read = token_reader(json.loads(state))
        self._special = {
            i: token.content.encode()
            for i, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        }
        self._bytes = _Filled(self._bytes_of)
        self._visible = _Filled(lambda i: b"" if i in self._special else self._bytes[i])

    def token_id(self, token: str) -> TokenId | None:
        """Return the id of the token that is spelled so; None if there is none."""
        return cast(TokenId | None, self._tokenizer.token_to_id(token))

    def encode(self, text: str, *, add_special: bool) -> list[TokenId]:
        text = well_formed(text)
        # The batch call, unlike `encode`, lets other threads run meanwhile.
        encoding = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special)[0]
        ids = cast(list[TokenId], encoding.ids)
        if add_special and self._bos is not None and ids[:2] == [self._bos, self._bos]:
            return ids[1:]  # the text spells its own BOS, as a rendered template may
        return ids

    def decoder(self, shown: frozenset[str] = frozenset()) -> TokenDecoder:
        decoder: TokenDecoder = (
            WindowDecoder(self._decode) if self._read is None else ByteDecoder(self._visible)
        )
        spelled = {
            i: s for s in shown if (i := self.token_id(s)) is not None and i in self._special
        }
        return SpellingDecoder(decoder, spelled) if spelled else decoder

    def token_bytes(self, token_id: TokenId) -> bytes:
        return self._bytes[token_id]

    def vocabulary(self, size: int) -> list[bytes] | None:
        """Return what ids 0 to `size` stand for in a text: special tokens for nothing.

        None where tokens say what they stand for only among others.
        """
        if self._read is None:
            return None
        return [self._visible[token_id] for token_id in range(size)]

    def special_tokens(self) -> dict[str, TokenId]:
        """Return the ids of special tokens by their spelling."""
        return {spelled.decode(): TokenId(i) for i, spelled in self._special.items()}

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        turns = [dict(message) for message in messages]
        if self._template is None:
            return transcript(turns, tools)
        return self._template.render(turns, tools, arguments or {})

    def fill_in_middle(self, prefix: str, suffix: str) -> list[TokenId] | None:
        if self._fill is None:
            return None
        before = self.encode(prefix, add_special=False)
        start = self.encode("", add_special=True)[:1]
        bos = start if start == [self._bos] else []
        return [*bos, *self._fill.prompt(before, self.encode(suffix, add_special=False))]

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self._special:
            return self._special[token_id]
        if self._read is None:
            return self._decode([token_id]).encode()
        # A model's logits may be wider than its vocabulary.
        token = self._tokenizer.id_to_token(token_id)
        return b"" if token is None else self._read(token)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


class _Filled(dict[int, bytes]):
    """A table that computes what it lacks: most of a large vocabulary is never asked for."""

    def __init__(self, compute: Callable[[int], bytes]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, token_id: int) -> bytes:
        self[token_id] = found = self._compute(token_id)
        return found


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`; {} if there is no file.  Raises ValueError naming it."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    return cast(dict[str, Any], value)


def token_text(said: object) -> str | None:
    """Return a token's spelling: a config has it as a string or in an object."""
    if isinstance(said, Mapping):
        said = cast(Mapping[str, object], said).get("content")
    return said if isinstance(said, str) else None


def _template_sources(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates by name, from the first place that has some.

    Where that has none for all conversations, one comes from the next place.
    """
    sources: dict[str, str] = {}
    if (path := folder / "chat_template.jinja").exists():
        sources[DEFAULT] = path.read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        sources[path.stem] = path.read_text(encoding="utf-8")
    if DEFAULT in sources:
        return sources
    said: Any = config.get("chat_template")
    if said is None:
        said = read_object(folder / "chat_template.json").get("chat_template")
    if isinstance(said, str):
        return {DEFAULT: said} | sources
    return {template["name"]: template["template"] for template in said or ()} | sources


def _add_missing_tokens(tokenizer: Any, config: Mapping[str, Any], named: Iterable[str]) -> None:
    """Add the tokens that only tokenizer_config.json names, as transformers does."""
    declared: dict[str, Any] = config.get("added_tokens_decoder") or {}
    for _, token in sorted(declared.items(), key=lambda item: int(item[0])):
        if tokenizer.token_to_id(token["content"]) is None:
            kept = {key: token[key] for key in _TOKEN_FLAGS if key in token}
            tokenizer.add_tokens([AddedToken(token["content"], **kept)])
    missing = [text for text in named if tokenizer.token_to_id(text) is None]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in missing])


def _converted(folder: Path) -> Tokenizer:
    auto = importlib.import_module("transformers").AutoTokenizer  # brought by mlx-lm
    backend = getattr(auto.from_pretrained(str(folder)), "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ValueError(f"{folder} has no tokenizer.json, nor what can be made into one")
    return backend
