"""Model store: where models come from, as a port, and the words for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

Progress = Callable[[str, int, int], None]
"""Hears of long work: what is being done, how much of it, of how much (0: not known)."""


class LocalModel(Struct, frozen=True):
    """A model on this machine.  `name` is what `resolve` takes and clients see."""

    name: str
    path: str
    model_type: str
    weights: str  # such as "4-bit" or "float32"
    num_bytes: int


class ModelUnavailable(LookupError):
    """The model cannot be had; the message says why, and what to do next."""


class LoadFailed(RuntimeError):
    """The model could not be opened; the message says why and what to do."""


class ModelStore(Protocol):
    """Port: the models of this machine, and how more come to it.  Calls block; any thread."""

    def resolve(self, name: str, progress: Progress) -> LocalModel:
        """Return the model that `name` means: demo, a folder, org/repo, or part of one name.

        Fetches demo and org/repo if they are not here.  Raises ModelUnavailable.
        """
        ...

    def find(self, name: str) -> LocalModel | None:
        """Return what `resolve` would, or None where that would fetch something.

        Raises ModelUnavailable when even fetching could not help.
        """
        ...

    def get(self, name: str, revision: str | None, progress: Progress) -> LocalModel:
        """Fetch demo or org/repo, or complete what is here of it.  Raises ModelUnavailable."""
        ...

    def models(self) -> list[LocalModel]:
        """Return what is here and complete, by name."""
        ...
