"""Embedding models against what their authors' code makes of the same ids.

Oracles: Hugging Face's encoders in JAX, recorded (see record_encoder_oracle.py), and mlx-lm.
"""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

import embedding_folders
from mlxbun.adapters.mlx_compute.embedding.opening import open_embedder
from mlxbun.adapters.mlx_compute.embedding.recipe import is_embedding_model, read_recipe
from mlxbun.adapters.tokenizer.folder import open_tokenizer
from mlxbun.domain.embedding import Embedder
from mlxbun.domain.sampling import TokenId

ORACLE: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("encoder_oracle.json").read_text()
)


def vectors(embedder: Embedder, texts: Sequence[Sequence[int]], num_tokens: int) -> NDArray[Any]:
    run = embedder.begin([[*map(TokenId, text)] for text in texts])
    found: dict[int, array[float]] = {}
    while len(found) < len(texts):
        found |= dict(run.advance(num_tokens)[1])
    return np.array([found[i] for i in range(len(texts))])


def opened(folder: Path) -> Embedder:
    return open_embedder(folder, read_recipe(folder), "float32").embedder


def unpacked(said: str) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(said), dtype="<f4")


def cosines(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[Any]:
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return np.asarray((ours * theirs).sum(axis=1) / norms)


@pytest.mark.parametrize("num_tokens", [8, 10_000])
def test_minilm_embeds_as_in_transformers(minilm: Path, num_tokens: int) -> None:
    cases = ORACLE[embedding_folders.MINILM]
    ours = vectors(opened(minilm), [case["ids"] for case in cases], num_tokens)
    theirs = np.array([unpacked(case["mean"]) for case in cases])
    assert cosines(ours, theirs).min() > 0.999999
    np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_minilm_reads_its_folder_as_sentence_transformers_does(minilm: Path) -> None:
    recipe = read_recipe(minilm)
    assert (recipe.pooling, recipe.normalise, recipe.max_tokens) == ("mean", True, 256)
    tokenizer = open_tokenizer(minilm)
    for case in ORACLE[embedding_folders.MINILM]:
        assert tokenizer.encode(case["text"], add_special=True) == case["ids"]


@pytest.mark.parametrize("mode", ["mean", "cls"])
@pytest.mark.parametrize("name", ["tiny-bert", "tiny-roberta"])
def test_every_pooling_of_an_encoder_is_that_of_its_states(
    tmp_path: Path, name: str, mode: str
) -> None:
    folder = embedding_folders.make_encoder(name, tmp_path / name)
    embedding_folders.list_modules(folder, f"{mode}_token{'s' * (mode == 'mean')}", normalise=False)
    ours = vectors(opened(folder), [case["ids"] for case in ORACLE[name]], 10_000)
    theirs = np.array([unpacked(case[mode]) for case in ORACLE[name]])
    np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.parametrize("prefix", ["bert.", ""])
def test_weights_of_a_checkpoint_with_heads_are_found(tmp_path: Path, prefix: str) -> None:
    folder = embedding_folders.make_encoder("tiny-bert", tmp_path / "m", prefix=prefix)
    weights = load_file(folder / "model.safetensors")
    extra: dict[str, Any] = {
        f"{prefix}pooler.dense.weight": np.zeros((32, 32), np.float32),
        "cls.predictions.bias": np.zeros(300, np.float32),
        f"{prefix}embeddings.position_ids": np.arange(48)[None],
    }
    old = {n.replace("LayerNorm.weight", "LayerNorm.gamma"): w for n, w in weights.items()}
    save_file(old | extra, str(folder / "model.safetensors"))
    ours = vectors(opened(folder), [case["ids"] for case in ORACLE["tiny-bert"]], 10_000)
    theirs = np.array([unpacked(case["mean"]) for case in ORACLE["tiny-bert"]])
    assert cosines(ours, theirs).min() > 0.999999


def test_a_quantised_encoder_embeds_nearly_the_same(tmp_path: Path) -> None:
    import mlx.core as mx
    from mlx.nn.layers.quantized import quantize
    from mlx.utils import tree_flatten

    from mlxbun.adapters.mlx_compute.embedding.bert import load_bert

    folder = embedding_folders.make_encoder("tiny-bert", tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    model = load_bert(folder, config)
    quantize(model, group_size=32, bits=8)
    parameters: Any = model.parameters  # without types
    weights: Any = dict(tree_flatten(parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    said = config | {"quantization": {"group_size": 32, "bits": 8}}
    (folder / "config.json").write_text(json.dumps(said))
    for dtype in ("native", "float32"):
        made = open_embedder(folder, read_recipe(folder), dtype).embedder
        ours = vectors(made, [case["ids"] for case in ORACLE["tiny-bert"]], 10_000)
        theirs = np.array([unpacked(case["mean"]) for case in ORACLE["tiny-bert"]])
        assert cosines(ours, theirs).min() > 0.995


def test_a_decoder_embeds_with_the_state_of_its_last_token(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    import mlx.core as mx
    from mlx_lm.utils import load_model

    folder = embedding_folders.make_qwen3(tiny_model, tmp_path / "qwen3")
    tokenizer = open_tokenizer(folder)
    texts = ["The harbour was quiet.", "Who?", "one two three " * 30]
    ids = [tokenizer.encode(text, add_special=True) for text in texts]
    assert {i[-1] for i in ids} == {tokenizer.token_id("<|endoftext|>")}
    chat, _ = load_model(tiny_model("tiny-qwen3"))
    body: Any = chat.model
    states = [np.array(body(mx.array([i])))[0, -1] for i in ids]
    theirs = np.array([state / np.linalg.norm(state) for state in states])
    for num_tokens in (7, 64, 10_000):  # bit by bit, and padded beside others
        ours = vectors(opened(folder), ids, num_tokens)
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("name", ["tiny-qwen3-5", "tiny-gemma3", "tiny-llama-4bit"])
def test_other_decoders_embed_bit_by_bit_as_at_once(
    tiny_model: Callable[[str], Path], name: str
) -> None:
    embedder = opened(tiny_model(name))
    texts = [range(20, 60), range(30, 33), range(100, 132)]
    at_once = vectors(embedder, texts, 10_000)
    np.testing.assert_allclose(vectors(embedder, texts, 9), at_once, atol=2e-5)
    for i, text in enumerate(texts):
        np.testing.assert_allclose(vectors(embedder, [text], 10_000)[0], at_once[i], atol=2e-5)


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-qwen3", "tiny-qwen3-5", "tiny-gemma3"])
def test_a_forward_stops_after_each_part_of_a_layer_and_makes_the_same(
    tmp_path: Path, tiny_model: Callable[[str], Path], name: str
) -> None:
    encoder = name == "tiny-bert"
    folder = embedding_folders.make_encoder(name, tmp_path / "m") if encoder else tiny_model(name)
    embedder = opened(folder)
    text = [*map(TokenId, range(20, 60))]
    run = embedder.begin([text])
    read, complete = run.advance(0.0)
    pieces = [read]
    while not complete:
        assert run.holds
        read, complete = run.advance(0.0)
        pieces.append(read)
    config = json.loads((folder / "config.json").read_text())
    num_layers = (config.get("text_config") or config)["num_hidden_layers"]
    assert len(pieces) == 2 * num_layers, "attention and feed-forward of each"
    assert pieces == pytest.approx([len(text) / len(pieces)] * len(pieces))
    at_once = vectors(embedder, [text], 10_000)[0]
    np.testing.assert_array_equal(np.array(complete[0][1]), at_once)


def test_layers_that_share_their_parts_tell_of_each_use_once(tmp_path: Path) -> None:
    import mlx.core as mx

    from mlxbun.adapters.mlx_compute.embedding.bert import load_bert
    from mlxbun.adapters.mlx_compute.embedding.forwards import Forwards

    folder = embedding_folders.make_encoder("tiny-bert", tmp_path / "m")
    model = load_bert(folder, json.loads((folder / "config.json").read_text()))
    layer = model.encoder.layer[0]
    model.encoder.layer = [layer, layer]
    forwards = Forwards(model.encoder.layer)
    states, noted = forwards.written(lambda: model(mx.array([[5, 6, 7]])))
    assert len(noted) == 4
    assert mx.array_equal(noted[-1], states)
    assert forwards.written(lambda: states)[1] == [], "of one forward at a time"


def test_tokens_of_a_long_text_go_through_an_encoders_layer_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlxbun.adapters.mlx_compute.embedding import bert

    embedder = opened(embedding_folders.make_encoder("tiny-bert", tmp_path / "m"))
    texts = [range(20, 60), range(60, 97)]
    at_once = vectors(embedder, texts, 10_000)
    monkeypatch.setattr(bert, "PART_TOKENS", 16)
    np.testing.assert_allclose(vectors(embedder, texts, 10_000), at_once, atol=1e-5)
    run = embedder.begin([[*map(TokenId, texts[0])]])
    assert run.advance(0.0)[0] == pytest.approx(40 / (2 * embedding_folders.LAYERS * 3))


def test_models_that_embed_are_told_from_those_that_generate(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    bert = embedding_folders.make_encoder("tiny-bert", tmp_path / "bert")
    qwen3 = embedding_folders.make_qwen3(tiny_model, tmp_path / "qwen3")
    assert is_embedding_model(bert, "org/x")
    assert is_embedding_model(qwen3, "org/x")
    chat = tiny_model("tiny-qwen3")
    assert not is_embedding_model(chat, "embedded/Qwen3-4B")
    assert is_embedding_model(chat, "mlx-community/Qwen3-Embedding-4B-4bit-DWQ")


def changed(folder: Path, name: str, **said: Any) -> None:
    path = folder / name
    there = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(there | said))


def test_what_a_folder_says_of_its_texts_is_kept_to(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    folder = embedding_folders.make_encoder("tiny-roberta", tmp_path / "m")
    assert read_recipe(folder).max_tokens == 46, "positions begin after the padding's id"
    changed(folder, "sentence_bert_config.json", max_seq_length=20, do_lower_case=True)
    changed(
        folder, "config_sentence_transformers.json",
        prompts={"query": "query: ", "passage": "passage: "}, default_prompt_name="passage",
    )  # fmt: skip
    recipe = read_recipe(folder)
    assert (recipe.max_tokens, recipe.lower_case, recipe.prefix) == (20, True, "passage: ")
    plain = read_recipe(tiny_model("tiny-qwen3"))
    assert (plain.pooling, plain.normalise, plain.suffix_token) == ("last", True, "<|endoftext|>")


@pytest.mark.parametrize(
    ("name", "said", "named"),
    [
        ("config.json", {"model_type": "mpnet"}, "mpnet"),
        ("config.json", {"model_type": "gemma3_text", "use_bidirectional_attention": True}, "both"),
        ("config.json", {"model_type": "qwen2", "is_causal": False}, "both"),
        ("config.json", {"position_embedding_type": "relative_key"}, "relative_key"),
        ("config.json", {"hidden_act": "mish"}, "mish"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "max_tokens"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "pooling is none"),
    ],
)
def test_what_cannot_be_done_as_trained_is_refused_by_its_file(
    tmp_path: Path, name: str, said: dict[str, Any], named: str
) -> None:
    folder = embedding_folders.make_encoder("tiny-bert", tmp_path / "m")
    embedding_folders.list_modules(folder, "mean_tokens")
    changed(folder, name, **said)
    with pytest.raises(ValueError, match=f"(?s){name}.*{named}"):
        open_embedder(folder, read_recipe(folder), "float32")


def test_a_model_that_judges_texts_is_refused(tmp_path: Path) -> None:
    folder = embedding_folders.make_encoder("tiny-bert", tmp_path / "m")
    changed(folder, "config.json", architectures=["BertForSequenceClassification"])
    with pytest.raises(ValueError, match=r"config\.json.*judges"):
        read_recipe(folder)


def test_half_precision_embeds_nearly_the_same(tmp_path: Path) -> None:
    folder = embedding_folders.make_encoder("tiny-bert", tmp_path / "m")
    made = open_embedder(folder, read_recipe(folder), "bfloat16").embedder
    ours = vectors(made, [case["ids"] for case in ORACLE["tiny-bert"]], 10_000)
    theirs = np.array([unpacked(case["mean"]) for case in ORACLE["tiny-bert"]])
    assert cosines(ours, theirs).min() > 0.999
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1.0, atol=1e-5)


def test_a_module_that_is_not_known_is_refused(tmp_path: Path) -> None:
    folder = embedding_folders.make_encoder("tiny-bert", tmp_path / "m")
    embedding_folders.list_modules(folder, "mean_tokens")
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 3, "path": "3_Dense", "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match="Dense"):
        read_recipe(folder)
