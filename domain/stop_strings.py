"""Stop strings on decoded text: matched across pieces, never shown, cut exactly.

A machine for one row.  What may be the beginning of a stop string is held back until it
completes (the row ends) or cannot any more (it is released).
"""

from __future__ import annotations


class StopStrings:
    """Feed it text as it comes; it says what may be shown and whether a stop was reached.

    The earliest match in the text wins; of two that begin together, the one that is complete
    first.  Stream and whole give the same text at every split.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(s for s in stops if s)
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """Return (text to show, the stop string that was completed or None)."""
        if not self._stops:
            return text, None
        if not text:
            return "", None
        text = self._held + text
        found = min(
            ((at, len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0),
            default=None,
        )
        if found is not None:
            self._held = ""
            return text[: found[0]], found[2]
        keep = max(_partial(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :] if keep else ""
        return text[: len(text) - keep], None

    def flush(self) -> str:
        """Return what was held back: no more text comes."""
        held, self._held = self._held, ""
        return held


def _partial(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
