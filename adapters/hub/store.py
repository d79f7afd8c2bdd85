"""The models of this machine: the demo, folders, and Hugging Face's cache."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mlxbun.adapters.hub import demo, hugging_face
from mlxbun.adapters.hub.model_folder import describe, why_unusable
from mlxbun.application.model_store import LocalModel, ModelUnavailable, Progress

DEMO = "demo"
_REPO = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)


class HubModelStore:
    """Models under `home` (the demo's), in folders, and in Hugging Face's cache.

    `demo_dtype` is the type in which the demo's weights are written.
    """

    def __init__(self, home: Path, demo_dtype: demo.WeightType | None = None) -> None:
        self._home = home.expanduser() / "models"
        self._demo_dtype: demo.WeightType = demo_dtype or demo.default_weight_type()

    def resolve(self, name: str, progress: Progress) -> LocalModel:
        return self.find(name) or self.get(name, None, progress)

    def find(self, name: str) -> LocalModel | None:
        if name == DEMO:
            folder = demo.demo_folder(self._home, self._demo_dtype)
            return describe(demo.DEMO.name, folder) if folder.is_dir() else None
        if _looks_like_a_path(name):
            return _at(Path(name).expanduser())
        if _REPO.fullmatch(name):
            snapshot = hugging_face.snapshot(name)
            if snapshot is not None and why_unusable(snapshot) is None:
                return describe(name, snapshot)
        matching = [model for model in self.models() if name.lower() in model.name.lower()]
        if len(matching) == 1:
            return matching[0]
        if _REPO.fullmatch(name):
            return None
        if matching:
            names = ", ".join(model.name for model in matching)
            raise ModelUnavailable(
                f"{name!r} matches {len(matching)} models here, say which: {names}"
            )
        here = ", ".join(model.name for model in self.models()) or "none"
        raise ModelUnavailable(
            f"no model here matches {name!r} (here: {here}).  Say demo, a folder, "
            "or org/repo to fetch it from Hugging Face"
        )

    def get(self, name: str, revision: str | None, progress: Progress) -> LocalModel:
        if name == DEMO:
            if revision is not None:
                raise ModelUnavailable("the demo model has no revisions")
            folder = demo.make_demo(self._home, self._demo_dtype, progress)
            return describe(demo.DEMO.name, folder)
        if not _REPO.fullmatch(name):
            raise ModelUnavailable(f"{name!r} cannot be fetched: say demo or org/repo")
        folder = hugging_face.download(name, revision, progress)
        if (why := why_unusable(folder)) is not None:
            raise ModelUnavailable(f"{name} was fetched, but {why}: it is not an MLX model")
        return describe(name, folder)

    def models(self) -> list[LocalModel]:
        return sorted(self._found(), key=lambda model: model.name.lower())

    def _found(self) -> Iterator[LocalModel]:
        if self._home.is_dir():
            for folder in self._home.iterdir():
                if not folder.name.startswith(".") and why_unusable(folder) is None:
                    yield describe(folder.name, folder)
        for name, folder in hugging_face.snapshots():
            if why_unusable(folder) is None:
                yield describe(name, folder)


def _looks_like_a_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~")) or name in (".", "..") or Path(name).is_dir()


def _at(folder: Path) -> LocalModel:
    if not folder.is_dir():
        raise ModelUnavailable(f"there is no folder {folder}.  What is here: mlxbun ls")
    if (why := why_unusable(folder)) is not None:
        raise ModelUnavailable(f"{folder} {why}: name a folder with a model in MLX's format")
    return describe(folder.resolve().name, folder.resolve())
