"""Lists of items in brackets as small machines: which item may follow which, and where one may end.

What can never end is cut off, so that no item is begun that leads nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from msgspec import Struct

from mlxbun.domain.constraint.rule_book import RuleBook, either

# Alternatives of one rule.  Many rules of few cost time at every mask, few rules of many cost time
# to compile.
BLOCK = 16


class State(Struct, frozen=True):
    """Where one stands; `begun` once an item was written."""

    at: tuple[int, ...]
    begun: bool


class Step(Struct, frozen=True):
    """To another state by writing `item`; None is by writing nothing.

    The item's expression is made only when it is written.
    """

    to: State
    item: Callable[[], str] | None = None


class Out(Struct, frozen=True):
    may_end: bool
    steps: tuple[Step, ...]


Machine = dict[State, Out]


def explored(start: State, out: Callable[[State], Out]) -> Machine:
    """Return the states that lie between `start` and an end; none at all if there is no way."""
    found: Machine = {}
    waiting = [start]
    before: dict[State, list[State]] = {}
    while waiting:
        state = waiting.pop()
        if state in found:
            continue
        found[state] = out(state)
        for step in found[state].steps:
            before.setdefault(step.to, []).append(state)
            waiting.append(step.to)
    alive = {state for state, said in found.items() if said.may_end}
    waiting = list(alive)
    while waiting:
        for state in before.get(waiting.pop(), ()):
            if state not in alive:
                alive.add(state)
                waiting.append(state)
    return {
        state: Out(said.may_end, tuple(step for step in said.steps if step.to in alive))
        for state, said in found.items()
        if state in alive
    }


class Signs(Struct, frozen=True):
    """Expressions of what stands around items, each with a blank behind it; "" for nothing."""

    open: str
    first: str
    between: str
    close: str


def written(machine: Machine, start: State, key: Hashable, book: RuleBook, signs: Signs) -> str:
    """Return the expression of what `machine` takes.  `key` tells it from others in the book."""

    def rule(state: State) -> str:
        return book.once((key, state), lambda: body(state))

    def body(state: State) -> str:
        found: list[str] = []
        if any(step.item for passed in passes(machine, state) for step in machine[passed].steps):
            before = signs.between if state.begun else signs.first
            found.append(f"{before}{items(state)}")
        if any(machine[passed].may_end for passed in passes(machine, state)):
            found.append(signs.close or '""')
        return either(found)

    def items(state: State) -> str:
        """Return the rule of what may follow one comma: it is told apart after it, in blocks."""
        return book.once((key, "items", state), lambda: either(alternatives(state)))

    def alternatives(state: State) -> Iterable[str]:
        for number, passed in enumerate(passes(machine, state)):
            if number and passed.at[0] % BLOCK == 0:
                if any(step.item for p in passes(machine, passed) for step in machine[p].steps):
                    yield items(passed)
                return
            for step in machine[passed].steps:
                if step.item is not None:
                    yield f"{step.item()} {rule(step.to)}"

    return f"{signs.open}{rule(start)}"


def passes(machine: Machine, state: State) -> Iterable[State]:
    """Yield `state`, and those that come after it when nothing is written."""
    following: State | None = state
    while following is not None:
        yield following
        steps = machine[following].steps
        following = next((step.to for step in steps if step.item is None), None)
