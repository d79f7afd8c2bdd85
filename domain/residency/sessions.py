"""Sessions: whose state leaves RAM last, and for how long."""

from __future__ import annotations

import itertools

from mlxbun.domain.residency.commands import Hold
from mlxbun.domain.residency.events import Event, SessionHeld, SessionReleased
from mlxbun.domain.residency.state import Residency

MAX_SESSIONS = 4096  # that live at once; the one that was quiet longest makes room


def held(state: Residency, command: Hold) -> list[Event]:
    """Let a session live on, with what its last request left."""
    events: list[Event] = [*expired(state, command.now)]
    before = state.sessions.get(command.session)
    over = any(e.session == command.session for e in events if isinstance(e, SessionReleased))
    had = before.keys if before is not None and not over else []
    if not command.keys and not had:
        return events
    if not had and len(state.sessions) - len(events) >= MAX_SESSIONS:
        quiet = next(s for s in list(state.sessions)[len(events) :])
        events.append(SessionReleased(quiet, "crowded out"))
    same = itertools.takewhile(
        lambda pair: pair[0] == pair[1], zip(had, command.keys, strict=False)
    )
    num_kept = sum(1 for _ in same) if command.keys else len(had)
    until = command.now + state.budget.session_seconds
    events.append(SessionHeld(command.session, num_kept, command.keys[num_kept:], until))
    return events


def expired(state: Residency, now: float) -> list[SessionReleased]:
    """Return that the sessions are over whose time is; they come first, in order of it."""
    over: list[SessionReleased] = []
    for name, session in state.sessions.items():
        if session.until > now:
            break
        over.append(SessionReleased(name, "expired"))
    return over
