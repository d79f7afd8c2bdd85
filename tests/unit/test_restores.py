"""Whatever is asked of the queues, each block comes out once, in its chain's order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from doubles.blocks import block, key
from mlxbun.application.restores import Restores
from mlxbun.domain.blocks import BlockInfo, BlockKey

Step = tuple[str, int, int, bool]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 9), st.integers(1, 4), st.booleans()),
        st.tuples(st.just("next"), st.just(0), st.just(0), st.just(False)),
        st.tuples(st.just("cancel"), st.integers(0, 9), st.integers(1, 4), st.just(False)),
        st.tuples(st.sampled_from(["rest", "clear"]), st.just(0), st.just(0), st.just(False)),
    ),
    max_size=40,
)


def chain_of(number: int, length: int) -> list[BlockInfo]:
    """Return blocks that no other chain has: a hundred keys are for each number."""
    first = 100 * number
    return [block(first + i, first + i - 1 if i else None)[0] for i in range(length)]


@given(steps)
def test_each_block_comes_out_once_and_in_order(script: list[Step]) -> None:
    restores, in_hand = Restores(), False
    asked, came, out = list[BlockKey](), list[BlockKey](), list[BlockKey]()
    for number, (what, start, length, ahead) in enumerate(script):
        if what == "add":
            blocks = chain_of(10 * number + start, length)
            restores.add(blocks, ahead)
            asked += [one.key for one in blocks]
        elif what == "next":
            if not in_hand and restores:
                restores.begin()
                in_hand = True
            found = restores.next() if in_hand else None
            in_hand = found is not None
            if found is not None:
                earlier = [k for k in came if asked.index(k) > asked.index(found.key)]
                same = [k for k in earlier if int(k, 16) // 100 == int(found.key, 16) // 100]
                assert not same, "a chain is read from its start"
                came.append(found.key)
        elif what == "cancel":
            wanted = asked[start : start + length]
            gone = restores.cancel(wanted)
            assert set(gone) <= set(wanted)
            out += gone
        else:
            out += [one.key for one in (restores.rest() if what == "rest" else restores.clear())]
    out += [one.key for one in restores.clear()]
    assert sorted(came + out) == sorted(asked) and not restores


def test_what_is_urgent_goes_first_and_what_was_begun_goes_on_after_it() -> None:
    restores = Restores()
    restores.add(chain_of(1, 3), ahead=True)
    restores.begin()
    assert (first := restores.next()) is not None and first.key == key(100)
    restores.add(chain_of(2, 1), ahead=False)
    assert restores.next() is None and restores
    order: list[BlockKey] = []
    while restores:
        restores.begin()
        while (found := restores.next()) is not None:
            order.append(found.key)
    assert order == [key(200), key(101), key(102)]
