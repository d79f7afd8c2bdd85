"""Which model a name means, with folders and a Hugging Face hub that the test serves."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from mlxbun.adapters.hub.demo import DEMO, demo_folder
from mlxbun.adapters.hub.store import HubModelStore
from mlxbun.application.model_store import ModelStore, ModelUnavailable

COMMIT = "a" * 40
PUBLISHED = {
    "config.json": b'{"model_type": "llama", "torch_dtype": "float32"}',
    "model.safetensors": bytes(3_000_000),
    "tokenizer.json": b"{}",
    "README.md": b"of no use",
}


def model(folder: Path, **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    (folder / "model.safetensors").write_bytes(bytes(100))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def cached(cache: Path, repo: str, **config: Any) -> Path:
    folder = cache / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    return model(folder / "snapshots" / COMMIT, **config)


def unwanted(*_: object) -> None:
    pytest.fail("nothing should be fetched")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def store(tmp_path: Path, cache: Path) -> ModelStore:
    return HubModelStore(tmp_path / "home", "float32")


def test_a_folder_is_served_under_its_own_name(store: ModelStore, tmp_path: Path) -> None:
    folder = model(tmp_path / "My-Model", quantization={"bits": 4, "group_size": 64})
    found = store.resolve(str(folder), unwanted)
    assert (found.name, found.path) == ("My-Model", str(folder))
    assert (found.model_type, found.weights) == ("llama", "4-bit")
    assert found.num_bytes == sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "has no model"),
        ("tokenizer.json", "has no tokenizer"),
    ],
)
def test_a_folder_that_lacks_something_is_refused(
    store: ModelStore, tmp_path: Path, broken: str, message: str
) -> None:
    folder = model(tmp_path / "m")
    (folder / broken).unlink()
    with pytest.raises(ModelUnavailable, match=message):
        store.find(str(folder))


def test_a_folder_that_is_not_there_is_refused(store: ModelStore, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="there is no folder .*mlxbun ls"):
        store.find(str(tmp_path / "missing"))


def test_a_folder_with_a_broken_configuration_is_refused(store: ModelStore, tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelUnavailable, match="broken description"):
        store.find(str(folder))


def test_a_cached_repository_is_found_without_the_network(store: ModelStore, cache: Path) -> None:
    folder = cached(cache, "org/Some-Model-4bit", dtype="bfloat16")
    found = store.resolve("org/Some-Model-4bit", unwanted)
    assert (found.name, found.path) == ("org/Some-Model-4bit", str(folder))
    assert found.weights == "bfloat16"


def test_a_cached_repository_that_lacks_a_shard_is_to_be_fetched(
    store: ModelStore, cache: Path
) -> None:
    folder = cached(cache, "org/sharded")
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-1-of-2.safetensors").write_bytes(b"")
    assert store.find("org/sharded") is None
    assert store.models() == []


def test_part_of_a_name_finds_the_only_model_with_it(store: ModelStore, cache: Path) -> None:
    cached(cache, "org/Llama-3.2-1B-4bit")
    cached(cache, "org/Qwen3-0.6B-4bit")
    found = store.find("llama")
    assert found is not None and found.name == "org/Llama-3.2-1B-4bit"


def test_part_of_several_names_lists_them(store: ModelStore, cache: Path) -> None:
    cached(cache, "org/Llama-3.2-1B-4bit")
    cached(cache, "org/Qwen3-0.6B-4bit")
    with pytest.raises(ModelUnavailable, match="matches 2 .*org/Llama-3.2-1B-4bit, org/Qwen3"):
        store.find("4bit")


def test_a_name_that_means_nothing_says_what_is_here(store: ModelStore, cache: Path) -> None:
    cached(cache, "org/Llama-3.2-1B-4bit")
    with pytest.raises(ModelUnavailable, match="matches 'phi'.*org/Llama-3.2-1B-4bit.*demo"):
        store.find("phi")


def test_the_demo_is_found_once_it_is_made(store: ModelStore, tmp_path: Path) -> None:
    assert store.find("demo") is None
    model(demo_folder(tmp_path / "home" / "models", "float32"))
    found = store.find("demo")
    assert found is not None and found.name == DEMO.name
    assert [listed.path for listed in store.models()] == [found.path]


def test_the_demo_of_another_type_is_another_folder(tmp_path: Path, cache: Path) -> None:
    model(demo_folder(tmp_path / "home" / "models", "float32"))
    assert HubModelStore(tmp_path / "home", "float16").find("demo") is None


def test_only_the_demo_and_repositories_can_be_fetched(store: ModelStore) -> None:
    for name in ("llama", "./folder", "a/b/c"):
        with pytest.raises(ModelUnavailable, match="cannot be fetched"):
            store.get(name, None, unwanted)
    with pytest.raises(ModelUnavailable, match="no revisions"):
        store.get("demo", "main", unwanted)


class Hub(http.server.BaseHTTPRequestHandler):
    """What Hugging Face answers of one repository, org/tiny."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        name = path.rpartition("/")[2]
        if path.startswith("/api/models/org/tiny/revision/main"):
            self.answer(200, json.dumps({"id": "org/tiny", "sha": COMMIT}).encode())
        elif path.startswith("/api/models/org/tiny/tree/"):
            tree = [
                {"type": "file", "path": n, "size": len(b), "oid": hashlib.sha1(b).hexdigest()}
                for n, b in PUBLISHED.items()
            ]
            self.answer(200, json.dumps(tree).encode())
        elif path.startswith("/org/tiny/resolve/") and name in PUBLISHED:
            etag = hashlib.sha1(PUBLISHED[name]).hexdigest()
            self.answer(200, PUBLISHED[name], {"etag": f'"{etag}"', "x-repo-commit": COMMIT})
        elif "/org/gated/" in path:
            self.answer(403, b"{}", {"x-error-code": "GatedRepo"})
        elif "/org/tiny/" in path:
            self.answer(404, b"{}", {"x-error-code": "RevisionNotFound"})
        else:
            self.answer(404, b"{}", {"x-error-code": "RepoNotFound"})

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def hub() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


SCRIPT = """
import sys, threading
from pathlib import Path
from mlxbun.adapters.hub.store import HubModelStore
from mlxbun.application.model_store import ModelUnavailable
store = HubModelStore(Path(sys.argv[1]))
told = []
try:
    found = store.get(sys.argv[2], *(sys.argv[3:] or [None]), lambda *what: told.append(what))
except ModelUnavailable as error:
    sys.exit(str(error))
assert store.resolve("tin", None) == found, "not found afterwards"
assert len(threading.enumerate()) == 1, "a thread is left, and the server would fork"
print(*sorted(path.name for path in Path(found.path).iterdir()))
print(*told[-1])
"""


def fetch(tmp_path: Path, endpoint: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Fetch in a fresh process: the library reads its variables when it is imported."""
    variables = {"HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_TOKEN": ""}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(tmp_path / "home"), *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )


def test_a_repository_is_fetched_with_progress_and_without_what_is_of_no_use(
    hub: str, tmp_path: Path
) -> None:
    done = fetch(tmp_path, hub, "org/tiny")
    assert done.returncode == 0, done.stderr
    files, progress = done.stdout.splitlines()
    assert files.split() == ["config.json", "model.safetensors", "tokenizer.json"]
    total = sum(len(PUBLISHED[name]) for name in files.split())
    assert progress == f"downloading org/tiny {total} {total}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["org/other"], "Hugging Face has no org/other"),
        (["org/gated"], "accept its terms"),
        (["org/tiny", "v9"], "org/tiny has no revision v9"),
    ],
)
def test_what_cannot_be_fetched_says_why(
    hub: str, tmp_path: Path, words: list[str], message: str
) -> None:
    done = fetch(tmp_path, hub, *words)
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr


def test_without_a_network_it_is_said_what_is_here(tmp_path: Path) -> None:
    done = fetch(tmp_path, "http://127.0.0.1:9", "org/tiny")
    assert done.returncode == 1
    assert "Hugging Face cannot be reached" in done.stderr and "mlxbun ls" in done.stderr
