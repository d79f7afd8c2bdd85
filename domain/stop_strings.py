"""Stop strings on decoded text: matched across pieces, never shown, cut exactly.

A machine for one row.  What may be the beginning of a stop string is held back until it
completes (the row ends) or cannot any more (it is released).

The rule when several match: the row reads character by character, and the first stop string to
be *complete* ends it; of those completed by the same character, the longest.  Nothing that
comes later can change this, so stream and whole agree at every split, and no end is ever
delayed to see whether a longer stop string follows.

Source: Aho and Corasick, "Efficient string matching", 1975: one step a character, however many
stop strings there are.
"""

from __future__ import annotations

_ROOT = 0


class StopStrings:
    """Feed it text as it comes; it says what may be shown and whether a stop was reached.

    Once it has reported a stop it is spent.  An empty stop string matches nothing.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._prefixes = _Prefixes(stops)
        self._first = frozenset(stop[0] for stop in stops if stop)
        self._node = _ROOT
        self._held = ""

    @property
    def num_held(self) -> int:
        """How many characters are held back."""
        return len(self._held)

    def feed(self, text: str) -> tuple[str, str | None]:
        """Return (text to show, the stop string that was completed or None)."""
        if self._node == _ROOT and self._first.isdisjoint(text):  # as nearly always
            return text, None
        node, step, matched = self._node, self._prefixes.step, self._prefixes.matched
        for at, character in enumerate(text, start=len(self._held) + 1):
            node = step(node, character)
            if size := matched[node]:
                text = self._held + text
                self._node, self._held = _ROOT, ""
                return text[: at - size], text[at - size : at]
        text = self._held + text
        shown = len(text) - self._prefixes.depth[node]
        self._node, self._held = node, text[shown:]
        return text[:shown], None

    def flush(self) -> str:
        """Return what was held back: no more text comes."""
        held, self._node, self._held = self._held, _ROOT, ""
        return held


class _Prefixes:
    """The prefixes of the stop strings as nodes, and which of them the text ends with.

    Nodes are made level by level and only as deep as the text has matched so far: a stop
    string of a million characters costs nothing until the text follows it.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.depth = [0]  # by node: the length of its prefix
        self.matched = [0]  # by node: the length of the longest stop string that it ends with
        self._next: list[dict[str, int]] = [{}]
        self._shorter = [_ROOT]  # by node: its longest proper end that is a node
        self._level = 0
        self._growing = [(stop, _ROOT) for stop in dict.fromkeys(stops) if stop]

    def step(self, node: int, character: str) -> int:
        """Return the longest prefix that the text ends with after `character`."""
        while True:
            if self.depth[node] == self._level and self._growing:
                self._grow()
            following = self._next[node].get(character)
            if following is not None:
                return following
            if node == _ROOT:
                return _ROOT
            node = self._shorter[node]

    def _grow(self) -> None:
        """Make the nodes of the next level."""
        level = self._level
        grown = [(stop, self._follow(node, stop[level])) for stop, node in self._growing]
        self._level = level + 1
        for stop, node in grown:
            if len(stop) == self._level:
                self.matched[node] = self._level
        # Past a match the text has ended: what would only continue one is never reached.
        self._growing = [(stop, node) for stop, node in grown if not self.matched[node]]

    def _follow(self, parent: int, character: str) -> int:
        node = self._next[parent].get(character)
        if node is None:
            shorter = self.step(self._shorter[parent], character) if parent != _ROOT else _ROOT
            node = len(self.depth)
            self._next[parent][character] = node
            self.depth.append(self.depth[parent] + 1)
            self.matched.append(self.matched[shorter])
            self._next.append({})
            self._shorter.append(shorter)
        return node
