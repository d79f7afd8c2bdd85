"""What happens because time passes: sessions end, and what is idle leaves RAM for the SSD alone."""

from __future__ import annotations

from mlxbun.domain.blocks import BlockKey
from mlxbun.domain.residency.events import BlocksEvicted, Event, TimePassed
from mlxbun.domain.residency.order import least_first
from mlxbun.domain.residency.sessions import expired
from mlxbun.domain.residency.state import Residency
from mlxbun.domain.residency.tails import SETTLE_SECONDS, next_settling, settled

STEP_SECONDS = 1.0  # how finely time is noted


def passed(state: Residency, now: float) -> list[Event]:
    """Return what is so at `now` and was not before."""
    events: list[Event] = [*expired(state, now)]
    idle = _idle(state, now - state.budget.idle_seconds)
    if idle:
        events.append(BlocksEvicted(idle, 0, "idle"))
    events += settled(state, now - SETTLE_SECONDS)
    if events or now - state.now >= STEP_SECONDS:
        events.append(TimePassed(now))
    return events


def next_due(state: Residency) -> float | None:
    """Return when time brings something: state is idle, a tail is written; None for never."""
    idle = state.idle[0][0] + state.budget.idle_seconds if state.idle else None
    due = [at for at in (idle, next_settling(state)) if at is not None]
    return min(due, default=None)


def _idle(state: Residency, since: float) -> tuple[BlockKey, ...]:
    """Return what only the SSD needs to have: nobody has used it after `since`."""
    found: dict[BlockKey, None] = {}
    for noted, _, key in least_first(state.idle):
        if noted > since:
            break
        resident = state.blocks.get(key)
        if resident is None or not (resident.in_ram and resident.on_ssd) or resident.num_lent:
            continue
        if resident.used_at <= since:
            found[key] = None
    return tuple(found)
