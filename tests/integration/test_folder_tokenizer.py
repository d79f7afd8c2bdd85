"""The text side of a model folder, against transformers."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from mlxbun.adapters.tokenizer.folder import FolderTokenizer, open_tokenizer
from mlxbun.domain.conversation import normalise
from mlxbun.domain.sampling import TokenId
from models.tiny import TOKEN_IDS, VOCAB_SIZE

BOS = "<|endoftext|>"
TinyModel = Callable[[str], Path]
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Où sont les bateaux ? 🙂"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<|im_end|> hi"}],
    [
        {"role": "user", "content": [{"type": "text", "text": "find Brest"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "hm",
            "tool_calls": [
                {"id": "c", "function": {"name": "find", "arguments": '{"town": "Brest é"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "found"},
    ],
]
TEXTS = [
    "",
    "Hello there",
    "  two  spaces\n\n\tand a tab",
    "<|im_start|>user\nhi<|im_end|>",
    "<think>hm</think> Zwölf Boote 港に船 🙂👍🏽",
    "nul \0 stays",
]


def transformers_of(folder: Path) -> Any:
    return importlib.import_module("transformers").AutoTokenizer.from_pretrained(str(folder))


@pytest.fixture(scope="module")
def folder(tiny_model: TinyModel) -> Path:
    return tiny_model("tiny-llama")


@pytest.fixture(scope="module")
def ours(folder: Path) -> FolderTokenizer:
    return open_tokenizer(folder)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    return transformers_of(folder)


@pytest.fixture
def changed(folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies the folder with other values in tokenizer_config.json."""

    def copy(**values: object) -> Path:
        copied = tmp_path / "copy"
        shutil.copytree(folder, copied)
        path = copied / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))
        return copied

    return copy


def decoded(tokenizer: FolderTokenizer, ids: list[TokenId]) -> str:
    decoder = tokenizer.decoder()
    return "".join([*map(decoder.add, ids), decoder.flush()])


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("add_special", [True, False])
def test_ids_and_text_are_those_of_transformers(
    ours: FolderTokenizer, oracle: Any, text: str, add_special: bool
) -> None:
    ids = ours.encode(text, add_special=add_special)
    assert ids == oracle.encode(text, add_special_tokens=add_special)
    assert decoded(ours, ids) == oracle.decode(ids, skip_special_tokens=True)


def test_any_ids_decode_as_in_transformers(ours: FolderTokenizer, oracle: Any) -> None:
    @given(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40))
    def check(ids: list[int]) -> None:
        tokens = list(map(TokenId, ids))
        assert decoded(ours, tokens) == oracle.decode(ids, skip_special_tokens=True)

    check()


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("tools", [(), (TOOL,)])
@pytest.mark.parametrize("arguments", [{"enable_thinking": True}, {"enable_thinking": False}])
def test_prompts_are_those_of_transformers(
    ours: FolderTokenizer,
    oracle: Any,
    messages: list[dict[str, Any]],
    tools: tuple[dict[str, Any], ...],
    arguments: dict[str, Any],
) -> None:
    turns = normalise(messages, "m")
    prompt = ours.render_chat(turns, tools, arguments)
    expected = oracle.apply_chat_template(
        turns, tools=list(tools) or None, tokenize=False, add_generation_prompt=True, **arguments
    )
    assert prompt == expected
    assert "Be brief." in prompt or turns[0]["role"] != "system"
    assert ours.encode(prompt, add_special=False) == oracle.encode(
        expected, add_special_tokens=False
    )


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_prompt_ids_are_those_of_mlx_lm(
    ours: FolderTokenizer, folder: Path, messages: list[dict[str, Any]]
) -> None:
    oracle = importlib.import_module("mlx_lm.tokenizer_utils").load(folder)
    turns = normalise(messages, "m")
    expected = oracle.apply_chat_template(turns, add_generation_prompt=True)
    assert ours.encode(ours.render_chat(turns), add_special=False) == expected


def test_thinking_is_on_unless_the_arguments_say_otherwise(ours: FolderTokenizer) -> None:
    turns = [{"role": "user", "content": "hi"}]
    assert ours.render_chat(turns).endswith("<|im_start|>assistant\n")
    assert ours.render_chat(turns, (), {"enable_thinking": False}).endswith("</think>\n\n")


@pytest.fixture
def with_bos(changed: Callable[..., Path]) -> Path:
    """A folder whose tokenizer.json puts a BOS before every text."""
    copied = changed(bos_token=BOS, add_bos_token=False)
    tokenizer = Tokenizer.from_file(str(copied / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, TOKEN_IDS[BOS])]
    )
    tokenizer.save(str(copied / "tokenizer.json"))
    return copied


@pytest.mark.parametrize("text", ["hi", ""])
def test_a_bare_text_gets_the_bos_of_tokenizer_json(with_bos: Path, text: str) -> None:
    ours, oracle = open_tokenizer(with_bos), transformers_of(with_bos)
    ids = ours.encode(text, add_special=True)
    assert ids[0] == TOKEN_IDS[BOS]
    assert ids == oracle.encode(text)
    assert ours.encode(text, add_special=False) == oracle.encode(text, add_special_tokens=False)


def test_a_text_that_spells_its_bos_does_not_get_another(with_bos: Path) -> None:
    ours = open_tokenizer(with_bos)
    assert ours.encode(f"{BOS}hi", add_special=True) == ours.encode("hi", add_special=True)


def test_tokens_that_only_the_config_names_are_added(changed: Callable[..., Path]) -> None:
    spelled = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    copied = changed(
        pad_token={"__type": "AddedToken", "content": "<pad>"} | spelled,
        added_tokens_decoder={"512": {"content": "<more>", "special": False} | spelled},
    )
    ours, oracle = open_tokenizer(copied), transformers_of(copied)
    ids = ours.encode("a<more>b<pad>", add_special=False)
    assert ids == oracle.encode("a<more>b<pad>", add_special_tokens=False)
    assert decoded(ours, ids) == "a<more>b" == oracle.decode(ids, skip_special_tokens=True)


def test_a_list_of_named_templates_is_read(changed: Callable[..., Path]) -> None:
    named = [
        {"name": "default", "template": "plain {{ eos_token }}"},
        {"name": "tool_use", "template": "{{ tools | length }} tools"},
    ]
    copied = changed(chat_template=named)
    (copied / "chat_template.jinja").unlink()
    ours = open_tokenizer(copied)
    turns = [{"role": "user", "content": "hi"}]
    assert ours.render_chat(turns) == "plain <|im_end|>"
    assert ours.render_chat(turns, [TOOL]) == "1 tools"


def test_the_template_comes_from_the_first_place_that_has_one(
    changed: Callable[..., Path],
) -> None:
    copied = changed(chat_template="from the config")
    turns = [{"role": "user", "content": "hi"}]
    (copied / "chat_template.json").write_text('{"chat_template": "from the json"}')
    (copied / "chat_template.jinja").write_text("from the file")
    (copied / "additional_chat_templates").mkdir()
    (copied / "additional_chat_templates" / "tool_use.jinja").write_text("from the folder")
    assert open_tokenizer(copied).render_chat(turns) == "from the file"
    assert open_tokenizer(copied).render_chat(turns, [TOOL]) == "from the folder"
    (copied / "chat_template.jinja").unlink()
    assert open_tokenizer(copied).render_chat(turns) == "from the config"
    assert open_tokenizer(copied).render_chat(turns, [TOOL]) == "from the folder"
    shutil.rmtree(copied / "additional_chat_templates")
    assert open_tokenizer(copied).render_chat(turns) == "from the config"
    (copied / "tokenizer_config.json").unlink()
    assert open_tokenizer(copied).render_chat(turns) == "from the json"
    (copied / "chat_template.json").unlink()
    assert open_tokenizer(copied).render_chat(turns) == "User: hi\n\nAssistant:"
    assert "You can call functions" in open_tokenizer(copied).render_chat(turns, [TOOL])


def test_fill_in_middle_goes_by_the_models_tokens(ours: FolderTokenizer, with_bos: Path) -> None:
    before, after = (ours.encode(text, add_special=False) for text in ("def f(", "): pass"))
    prefix, suffix, middle = (
        TokenId(TOKEN_IDS[f"<|fim_{part}|>"]) for part in ("prefix", "suffix", "middle")
    )
    prompt = [prefix, *before, suffix, *after, middle]
    assert ours.fill_in_middle("def f(", "): pass") == prompt
    assert open_tokenizer(with_bos).fill_in_middle("def f(", "): pass") == [TOKEN_IDS[BOS], *prompt]


def test_a_model_without_such_tokens_cannot_fill_in(changed: Callable[..., Path]) -> None:
    copied = changed()
    path = copied / "tokenizer.json"
    path.write_text(path.read_text().replace("<|fim_middle|>", "<|other|>"))
    assert open_tokenizer(copied).fill_in_middle("a", "b") is None


def test_a_half_of_a_pair_becomes_a_sign(ours: FolderTokenizer) -> None:
    assert decoded(ours, ours.encode("a\ud83d", add_special=True)) == "a\ufffd"


def test_a_folder_without_tokenizer_json_is_converted(
    changed: Callable[..., Path], ours: FolderTokenizer
) -> None:
    copied = changed(tokenizer_class="GPT2Tokenizer", unk_token="<|endoftext|>")
    path = copied / "tokenizer.json"
    model = json.loads(path.read_text())["model"]
    path.unlink()
    (copied / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (copied / "merges.txt").write_text("\n".join(merges) + "\n")
    converted = open_tokenizer(copied)
    text = "The keeper said: Zwölf Boote 🙂"
    assert converted.encode(text, add_special=False) == ours.encode(text, add_special=False)
    assert decoded(converted, converted.encode(text, add_special=False)) == text


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_broken_file_is_named(changed: Callable[..., Path], name: str) -> None:
    copied = changed()
    (copied / name).write_text('{"half": ')
    with pytest.raises(ValueError, match=name):
        open_tokenizer(copied)


def test_opening_a_folder_loads_neither_transformers_nor_mlx(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from mlxbun.adapters.tokenizer.folder import open_tokenizer;"
        "from mlxbun.adapters.tokenizer.model_card import read_card;"
        "open_tokenizer(Path(sys.argv[1])); read_card(Path(sys.argv[1]), 'm');"
        "print({'transformers', 'torch', 'mlx', 'mlx_lm', 'numpy'} & set(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "set()\n"
