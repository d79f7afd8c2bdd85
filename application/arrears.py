"""Arrears: what a disk refused, when to ask for it again, and for how much.

Pure but for the clock of its backoff.  The caller sees to it that one thread calls at a time.
"""

from __future__ import annotations

from msgspec import Struct

from mlxbun.application.backoff import Backoff

ROUND = 64  # blocks
MOST = 4096  # blocks


class Ask(Struct, frozen=True):
    """Blocks are to be found that are owed, `most` at most; `refused` is for the answer."""

    most: int
    refused: int


class Arrears:
    """Owed is what RAM has and the disk did not take.

    After a failure one block is tried when `again` says so, and where that goes well more and
    more at once, until nothing is owed.
    """

    def __init__(self, again: Backoff) -> None:
        self._again = again
        self._num_refused = 0
        self._owes = self._asking = False
        self._works = True
        self._round = ROUND

    @property
    def owes(self) -> bool:
        return self._owes

    @property
    def is_asking(self) -> bool:
        return self._asking

    def refused(self, *, broke: bool = False) -> None:
        """Note that blocks were not taken, because the disk `broke` or for another reason."""
        self._num_refused += 1
        self._owes = True
        self._again.failed()
        if broke:
            self._works, self._round = False, 1

    def wrote(self) -> bool:
        """Note that blocks were taken; return whether the disk works, as far as can be told."""
        probed = self._round == 1 and self._owes
        self._works = True
        self._round = min(max(ROUND, 2 * self._round), MOST)
        return not probed

    def ask(self, *, wrote: bool, is_due: bool) -> Ask | None:
        """Return what to ask for now that nothing waits to be written; None: nothing, or later.

        `wrote` says that the last batch went well, `is_due` that it is time to try again.
        """
        if not self._owes or self._asking:
            return None
        if not (wrote or is_due):
            self._again.failed()
            return None
        self._asking = True
        return Ask(self._round, self._num_refused)

    def answered(self, ask: Ask, *, any_left: bool) -> bool:
        """Note whether anything was found; return whether all is well now."""
        self._asking = False
        if any_left or ask.refused != self._num_refused:
            return False
        self._owes = False
        return self.all_well()

    def all_well(self) -> bool:
        """Return whether the disk works and nothing is owed; then the next failure is a first."""
        if self._owes or not self._works:
            return False
        self._again.worked()
        self._round = ROUND
        return True
