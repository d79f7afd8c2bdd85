"""Hugging Face's hub and its cache on this machine.

The library is imported on first use: most starts need neither it nor the network.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlxbun.application.model_store import ModelUnavailable, Progress

# What an MLX model consists of; repositories hold much else.
FILES = ("*.json", "model*.safetensors", "*.model", "*.tiktoken", "*.txt", "*.jinja", "*.jsonl")
_FOLDER = "models--"


def cache() -> Path:
    """Return the folder that $HF_HUB_CACHE or $HF_HOME name, or the default one."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def snapshot(repo: str) -> Path | None:
    """Return the newest snapshot of `repo` in the cache, perhaps incomplete, or None."""
    folder = cache() / (_FOLDER + repo.replace("/", "--"))
    main = folder / "refs" / "main"
    if main.is_file() and (named := folder / "snapshots" / main.read_text().strip()).is_dir():
        return named
    found = [path for path in folder.glob("snapshots/*") if path.is_dir()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def snapshots() -> Iterator[tuple[str, Path]]:
    """Yield the repositories of models in the cache: name, newest snapshot."""
    for folder in cache().glob(f"{_FOLDER}*--*"):
        repo = folder.name.removeprefix(_FOLDER).replace("--", "/", 1)
        if (newest := snapshot(repo)) is not None:
            yield repo, newest


def download(repo: str, revision: str | None, progress: Progress) -> Path:
    """Fetch what is missing of `repo` into the cache; return its snapshot.

    Raises ModelUnavailable when it does not exist, may not be read, or cannot be reached.
    """
    from huggingface_hub import errors

    fetch: Any = importlib.import_module("huggingface_hub").snapshot_download
    try:
        path = fetch(
            repo,
            revision=revision,
            cache_dir=cache(),
            allow_patterns=list(FILES),
            tqdm_class=_bar(f"downloading {repo}", progress),
        )
    except errors.GatedRepoError as error:
        raise ModelUnavailable(
            f"{repo} asks you to accept its terms: do so at https://huggingface.co/{repo}, "
            "then put a token of yours in HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelUnavailable(f"{repo} has no revision {revision}") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelUnavailable(
            f"Hugging Face has no {repo}, or only for those with a token (HF_TOKEN)"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        why = str(error).splitlines()[0].removeprefix("Got: ")
        raise ModelUnavailable(
            f"{repo} is not on this machine, and Hugging Face cannot be reached ({why}).  "
            "What is here: mlxbun ls"
        ) from error
    except Exception as error:  # whatever the network or the disk does on the way
        raise ModelUnavailable(
            f"{repo} could not be fetched ({type(error).__name__}: {error}).  Try again: what "
            "has come so far is kept"
        ) from error
    return Path(path)


def _bar(label: str, progress: Progress) -> type[Any]:
    """Return a progress bar class for the library that shows nothing and tells `progress`."""
    tqdm: Any = importlib.import_module("tqdm").tqdm

    class Bar(tqdm):  # type: ignore[misc]  # it has no types
        monitor_interval = 0  # else its first bar starts a thread that never ends

        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)  # of the library's own class alone
            tqdm.__init__(self, *args, **{**options, "file": io.StringIO(), "disable": False})

        def display(self, *_: Any, **__: Any) -> None:
            # One bar counts bytes written, one bytes received, one files: the first will do.
            if self.unit == "B" and not str(self.desc).startswith("Downloading"):
                progress(label, int(self.n), int(self.total or 0))

        def __del__(self) -> None:
            """Stay silent: without this, the end of the program would draw a last bar."""

    return Bar
