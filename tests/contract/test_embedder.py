"""Every sentence of the embedder's port, on MLX's encoder and decoder and on the double."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import embedding_folders
from doubles.embedder import ScriptedEmbedder
from mlxbun.adapters.mlx_compute.embedding.opening import open_embedder
from mlxbun.adapters.mlx_compute.embedding.recipe import read_recipe
from mlxbun.domain.embedding import Embedder
from mlxbun.domain.sampling import TokenId

READERS = ["double", "double whole", "encoder", "decoder"]
TEXTS = [tuple(TokenId(10 + (i * 37) % 200) for i in range(n)) for n in (3, 40, 1, 7, 40, 12, 2)]


@pytest.fixture(params=READERS)
def embedder(
    request: pytest.FixtureRequest, tmp_path: Path, tiny_model: Callable[[str], Path]
) -> Embedder:
    if request.param.startswith("double"):
        return ScriptedEmbedder(whole=request.param.endswith("whole"))
    if request.param == "encoder":
        folder = embedding_folders.make_encoder("tiny-bert", tmp_path / "model")
    else:
        folder = embedding_folders.make_qwen3(tiny_model, tmp_path / "model")
    return open_embedder(folder, read_recipe(folder), "auto").embedder


def embedded(
    embedder: Embedder, texts: Sequence[Sequence[TokenId]], num_tokens: float
) -> tuple[list[array[float]], list[float]]:
    """Return the vectors in the order of the texts, and how many tokens each piece read."""
    run = embedder.begin(texts)
    vectors: dict[int, array[float]] = {}
    read: list[float] = []
    while len(vectors) < len(texts):
        count, complete = run.advance(num_tokens)
        read.append(count)
        for place, vector in complete:
            assert place not in vectors, "each place is returned once"
            vectors[place] = vector
    assert sorted(vectors) == list(range(len(texts)))
    return [vectors[place] for place in range(len(texts))], read


def same(one: array[float], other: array[float]) -> bool:
    return len(one) == len(other) and all(
        math.isclose(a, b, abs_tol=1e-5) for a, b in zip(one, other, strict=True)
    )


def test_vectors_are_of_float32_and_of_one_size(embedder: Embedder) -> None:
    vectors, _ = embedded(embedder, TEXTS, 64)
    assert {vector.typecode for vector in vectors} == {"f"}
    assert len({len(vector) for vector in vectors}) == 1


def test_vectors_of_these_models_have_length_1(embedder: Embedder) -> None:
    vectors, _ = embedded(embedder, TEXTS, 64)
    assert [math.fsum(x * x for x in v) for v in vectors] == pytest.approx([1.0] * len(TEXTS))


@pytest.mark.parametrize("num_tokens", [0.01, 1, 5, 16, 64, 10_000])
def test_a_vector_depends_on_its_text_alone(embedder: Embedder, num_tokens: int) -> None:
    together, _ = embedded(embedder, TEXTS, num_tokens)
    for text, vector in zip(TEXTS, together, strict=True):
        ((alone,), _) = embedded(embedder, [text], 10_000)
        assert same(alone, vector)
    assert not same(together[0], together[3])
    assert same(together[1], together[4]), "the same text twice is the same vector twice"


@pytest.mark.parametrize("num_tokens", [0.01, 1, 5, 16, 64])
def test_a_piece_reads_about_as_many_tokens_as_it_was_told(
    embedder: Embedder, num_tokens: float
) -> None:
    _, read = embedded(embedder, TEXTS, num_tokens)
    assert sum(read) == pytest.approx(sum(map(len, TEXTS)))
    assert all(read)
    longest = max(map(len, TEXTS))
    assert max(read) < num_tokens + longest, "at most one text is read beyond that"


def test_a_run_that_is_left_does_not_disturb_another(embedder: Embedder) -> None:
    left = embedder.begin(TEXTS)
    left.advance(5)
    before, _ = embedded(embedder, TEXTS, 64)
    del left
    after, _ = embedded(embedder, TEXTS, 64)
    assert all(map(same, before, after))


def test_a_run_holds_something_only_while_a_text_is_half_read(embedder: Embedder) -> None:
    run, num_left = embedder.begin(TEXTS), len(TEXTS)
    while num_left:
        _, complete = run.advance(16)
        num_left -= len(complete)
        assert complete or run.holds, "a piece completes a text, or is of one that is half read"
    assert not run.holds
