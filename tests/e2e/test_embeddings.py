"""Embeddings from a real server through the official SDK: beside a chat model, and alone."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

import embedding_folders
from mlxbun.adapters.tokenizer.folder import open_tokenizer

PROGRAM = (sys.executable, "-m", "mlxbun", "serve")
SECONDS = 60.0
ORACLE = json.loads((Path(__file__).parents[1] / "integration/encoder_oracle.json").read_text())
USER: Any = [{"role": "user", "content": "hi"}]


class Server:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=SECONDS) as answer:
            return json.load(answer)

    @contextmanager
    def client(self) -> Iterator[openai.OpenAI]:
        url = f"{self.url}/v1"
        with openai.OpenAI(base_url=url, api_key="x", max_retries=0, timeout=SECONDS) as client:
            yield client


@contextmanager
def serving(*words: str) -> Iterator[Server]:
    """Run a server; it is ready in the block, and gone after it, without a complaint."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    argv = [*PROGRAM, *words, "--port", str(port)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said: list[str] = []
        try:
            for line in process.stderr:
                said.append(line)
                if " serving " in line:
                    break
            else:
                pytest.fail("the server did not start:\n" + "".join(said))
            yield Server(process, port)
            process.terminate()
            said += process.stderr
            process.wait(SECONDS)
            assert "Traceback" not in "".join(said)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def beside(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]
) -> Iterator[Server]:
    """Yield a server of tiny-llama with a model like Qwen3-Embedding beside it."""
    folder = tmp_path_factory.mktemp("embedding")
    made = embedding_folders.make_qwen3(tiny_model, folder / "tiny-qwen3-embedding")
    words = (str(tiny_model("tiny-llama")), "--embedding-model", str(made))
    with serving(*words) as server:
        yield server


@pytest.fixture
def client(beside: Server) -> Iterator[openai.OpenAI]:
    with beside.client() as client:
        yield client


EMBED = "tiny-qwen3-embedding"


def test_the_sdk_reads_the_same_vectors_from_either_format(client: openai.OpenAI) -> None:
    texts = ["The harbour was quiet.", "Who?"]
    asked = client.embeddings.create(model=EMBED, input=texts)  # as base64, which it decodes
    floats = client.embeddings.create(model=EMBED, input=texts, encoding_format="float")
    for one, other in zip(asked.data, floats.data, strict=True):
        assert array("f", one.embedding) == array("f", other.embedding)
        assert np.linalg.norm(one.embedding) == pytest.approx(1.0, abs=1e-5)
    assert [item.index for item in asked.data] == [0, 1]
    said = client.embeddings.create(model=EMBED, input="Who?", encoding_format="base64").data[0]
    raw: Any = said.embedding
    packed = np.frombuffer(base64.b64decode(raw), "<f4") if isinstance(raw, str) else raw
    np.testing.assert_allclose(packed, asked.data[1].embedding, atol=1e-6)


def test_ids_of_its_own_tokenizer_are_the_text(
    client: openai.OpenAI, tiny_model: Callable[[str], Path]
) -> None:
    tokenizer = open_tokenizer(tiny_model("tiny-qwen3"))
    end = tokenizer.token_id("<|endoftext|>")
    assert end is not None
    ids = [*tokenizer.encode("Who?", add_special=False), end]
    by_text = client.embeddings.create(model=EMBED, input="Who?")
    by_ids = client.embeddings.create(model=EMBED, input=[[*map(int, ids)]])
    np.testing.assert_allclose(by_ids.data[0].embedding, by_text.data[0].embedding, atol=1e-6)
    assert by_text.usage.prompt_tokens == by_ids.usage.prompt_tokens == len(ids)


def test_fewer_dimensions_are_cut_and_scaled(client: openai.OpenAI) -> None:
    whole = client.embeddings.create(model=EMBED, input="Who?").data[0].embedding
    cut = client.embeddings.create(model=EMBED, input="Who?", dimensions=8).data[0].embedding
    np.testing.assert_allclose(cut, np.array(whole[:8]) / np.linalg.norm(whole[:8]), atol=1e-6)
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model=EMBED, input="Who?", dimensions=4096)


def test_both_models_are_listed_and_each_does_its_own(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny-llama", EMBED]
    assert client.models.retrieve(EMBED).id == EMBED
    said = client.chat.completions.create(model="tiny-llama", messages=USER, max_tokens=3)
    assert said.usage is not None and said.usage.completion_tokens <= 3
    with pytest.raises(openai.BadRequestError, match="embedding model"):
        client.chat.completions.create(model=EMBED, messages=USER)
    with pytest.raises(openai.BadRequestError, match="no embedding model"):
        client.embeddings.create(model="tiny-llama", input="a")


def test_a_stream_goes_on_while_texts_are_embedded(beside: Server, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny-llama", messages=USER, stream=True, temperature=0, max_tokens=100_000,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    records = iter(stream)
    next(records)
    before = beside.get("/stats")
    texts = [f"boat number {i} came home " * (1 + i % 9) for i in range(200)]
    answer = client.embeddings.create(model=EMBED, input=texts)
    after = beside.get("/stats")
    assert [item.index for item in answer.data] == list(range(200))
    assert after["embeddings"]["texts"] - before["embeddings"]["texts"] == 200
    assert after["embeddings"]["tokens"] - before["embeddings"]["tokens"] == (
        answer.usage.prompt_tokens
    )
    # A piece has some hundreds of tokens here at most, and each is followed by a step.
    assert after["steps"] - before["steps"] > 3
    assert after["active_rows"] == 1, "the stream is not over"
    stream.close()
    while beside.get("/stats")["active_rows"]:
        pass


def test_a_client_that_leaves_ends_its_batch(beside: Server, client: openai.OpenAI) -> None:
    body = json.dumps({"model": EMBED, "input": ["boats came home one by one " * 60] * 2000})
    num_read = beside.get("/stats")["embeddings"]["tokens"]
    with socket.create_connection(("127.0.0.1", int(beside.url.rsplit(":", 1)[1]))) as left:
        head = f"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        left.sendall((head + body).encode())
        while beside.get("/stats")["embeddings"]["tokens"] == num_read:
            pass
    alone = -1
    while alone:  # of a batch that goes on, pieces would be read beside every other request
        before = beside.get("/stats")["embeddings"]["tokens"]
        used = client.embeddings.create(model=EMBED, input=["Who?", "Where?"]).usage.prompt_tokens
        alone = beside.get("/stats")["embeddings"]["tokens"] - before - used
    assert beside.get("/stats")["embeddings"]["tokens"] < num_read + 2000 * 60


@pytest.fixture(scope="module")
def alone(minilm: Path) -> Iterator[Server]:
    """Yield a server of the real all-MiniLM-L6-v2."""
    with serving(str(minilm)) as server:
        yield server


def test_a_real_model_alone_gives_the_vectors_of_its_authors(alone: Server) -> None:
    cases = [case for case in ORACLE["all-MiniLM-L6-v2"] if len(case["ids"]) <= 256]
    with alone.client() as client:
        answer = client.embeddings.create(
            model="all-MiniLM-L6-v2", input=[case["text"] for case in cases]
        )
        ours = np.array([item.embedding for item in answer.data])
        theirs = np.array([np.frombuffer(base64.b64decode(c["mean"]), "<f4") for c in cases])
        assert (ours * theirs).sum(axis=1).min() > 0.9999
        assert answer.usage.prompt_tokens == sum(len(case["ids"]) for case in cases)
        with pytest.raises(openai.BadRequestError, match="maximum context length is 256 tokens"):
            client.embeddings.create(model="all-MiniLM-L6-v2", input="word " * 300)
        with pytest.raises(openai.BadRequestError, match="/v1/embeddings"):
            client.chat.completions.create(model="all-MiniLM-L6-v2", messages=USER)
        assert [model.id for model in client.models.list()] == ["all-MiniLM-L6-v2"]
    settings = {s["name"]: s["value"] for s in alone.get("/v1/effective-config")["settings"]}
    assert (settings["embedding_pooling"], settings["embedding_dimensions"]) == ("mean", "384")
    assert settings["embedding_max_tokens"] == 256


def failed(*words: str) -> str:
    """Run a server that must not start; return what it said."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    done = subprocess.run(
        [*PROGRAM, *words, "--port", port], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 1
    return done.stderr


def test_an_embedding_model_that_cannot_be_loaded_is_named_by_its_folder(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    folder = embedding_folders.make_encoder("tiny-bert", tmp_path / "broken-embed")
    embedding_folders.list_modules(folder, "max_tokens")
    said = failed(str(tiny_model("tiny-llama")), "--embedding-model", str(folder))
    assert str(folder) in said and "max_tokens" in said
    assert "mean, cls or lasttoken" in said
    missing = tmp_path / "nowhere"
    said = failed(str(tiny_model("tiny-llama")), "--embedding-model", str(missing))
    assert str(missing) in said


def test_two_models_of_one_name_are_not_served(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    copied = shutil.copytree(tiny_model("tiny-llama"), tmp_path / "tiny-llama")
    said = failed(str(tiny_model("tiny-llama")), "--embedding-model", str(copied))
    assert "--served-name" in said


def test_two_models_that_embed_are_not_served(tmp_path: Path) -> None:
    folder = embedding_folders.make_encoder("tiny-bert", tmp_path / "tiny-bert")
    other = shutil.copytree(folder, tmp_path / "other-bert")
    said = failed(str(folder), "--embedding-model", str(other))
    assert "tiny-bert embeds itself" in said


def test_a_window_that_is_capped_is_capped_for_a_model_that_only_embeds(minilm: Path) -> None:
    with serving(str(minilm), "--context-length", "5") as server, server.client() as client:
        assert client.embeddings.create(model=minilm.name, input="one two three").data
        with pytest.raises(openai.BadRequestError, match="context length is 5 tokens"):
            client.embeddings.create(model=minilm.name, input="one two three four")
