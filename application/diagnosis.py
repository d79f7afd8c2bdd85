"""Diagnosis: what is checked of a machine before one relies on it, and the words for it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Verdict = Literal["ok", "warn", "fail"]


class Check(Struct, frozen=True):
    """One thing that was looked at.  `todo` says what to do about it when it is not ok."""

    name: str
    verdict: Verdict
    found: str
    todo: str = ""
