"""Scheduling: who is admitted, and what the next step computes.

A request waits, prefills (all of its prompt but the last token, in chunks), starts (one
forward over the last prompt token draws its first token), then decodes until it ends.  A
plan is data: which rows decode, which start, which prefill how many tokens.  Steps are
pipelined, so a plan is made before the step before it was read; a row that turns out to
have ended has one unused slot, which nobody sees.  A step either prefills or decodes: while
rows decode the two take turns, so that no stream waits for more than one chunk and a short
prompt starts with the next step.

Pure: no tensors, no model, no clock.  Seconds are measured by the engine and arrive in
`CommitStep`; the log alone rebuilds the state, the measured rates included.
"""

from __future__ import annotations

from mlxbun.domain.scheduling.decisions import decide, looks_ahead, next_in, prefill_budget
from mlxbun.domain.scheduling.state import Row, Scheduling, evolve, fold
from mlxbun.domain.scheduling.words import (
    Cancel,
    Command,
    CommitStep,
    Drain,
    DrainStarted,
    Event,
    Fail,
    Finish,
    Hold,
    Limits,
    PlanStep,
    PrefixReused,
    Release,
    RequestAdmitted,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RequestHeld,
    RequestQueued,
    RequestRejected,
    RequestReleased,
    Reuse,
    StepCommitted,
    StopAt,
    StopsSet,
    Submit,
    refusal,
)

__all__ = [
    "Cancel",
    "Command",
    "CommitStep",
    "Drain",
    "DrainStarted",
    "Event",
    "Fail",
    "Finish",
    "Hold",
    "Limits",
    "PlanStep",
    "PrefixReused",
    "Release",
    "RequestAdmitted",
    "RequestCancelled",
    "RequestFailed",
    "RequestFinished",
    "RequestHeld",
    "RequestQueued",
    "RequestRejected",
    "RequestReleased",
    "Reuse",
    "Row",
    "Scheduling",
    "StepCommitted",
    "StopAt",
    "StopsSet",
    "Submit",
    "decide",
    "evolve",
    "fold",
    "looks_ahead",
    "next_in",
    "prefill_budget",
    "refusal",
]
