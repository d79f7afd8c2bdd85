"""Marks that clients put before a prompt anew with every conversation or request.

Whatever stands after one would never be found in the prefix cache.  They are for a vendor's
accounts, and the model gains nothing by them.
"""

from __future__ import annotations

# Claude Code's first system block is such a line alone.
_BILLING = "x-anthropic-billing-header:"


def without_marks(text: str) -> str:
    """Return a system text without the line of accounts that begins it."""
    if not text.startswith(_BILLING):
        return text
    return text.partition("\n")[2].lstrip("\n")
