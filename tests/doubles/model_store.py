"""A store of models that are only names."""

from __future__ import annotations

from mlxbun.application.model_store import LocalModel, ModelUnavailable, Progress


def named(name: str) -> LocalModel:
    return LocalModel(name, f"/models/{name}", "llama", "4-bit", 1_234_000_000)


class ListModelStore:
    """Port ModelStore.  Fetches what is in `remote`, telling of two steps."""

    def __init__(self, here: list[str] | None = None, remote: list[str] | None = None) -> None:
        self.here = list(here or [])
        self.remote = list(remote or [])

    def resolve(self, name: str, progress: Progress) -> LocalModel:
        return self.find(name) or self.get(name, None, progress)

    def find(self, name: str) -> LocalModel | None:
        if name in self.here:
            return named(name)
        if name in self.remote:
            return None
        raise ModelUnavailable(f"no model here matches {name!r}")

    def get(self, name: str, revision: str | None, progress: Progress) -> LocalModel:
        if name not in self.remote:
            raise ModelUnavailable(f"{name!r} cannot be fetched")
        progress(f"downloading {name}", 0, 10)
        progress(f"downloading {name}", 10, 10)
        self.here.append(name)
        return named(name)

    def models(self) -> list[LocalModel]:
        return [named(name) for name in sorted(self.here)]
