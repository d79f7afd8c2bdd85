"""Keys of blocks: equal prefixes have equal keys, and nothing else has."""

from __future__ import annotations

import hashlib
import struct

from hypothesis import given
from hypothesis import strategies as st

from mlxbun.domain.blocks import BLOCK, BlockKey, Namespace, boundaries, boundary, chain
from mlxbun.domain.sampling import TokenId

ONE, OTHER = Namespace("11" * 32), Namespace("22" * 32)
tokens = st.lists(st.integers(0, 2**31).map(TokenId), max_size=3 * BLOCK)


def test_a_key_is_the_digest_of_what_came_before_and_the_tokens() -> None:
    ids = [TokenId(i) for i in range(2 * BLOCK)]
    first = hashlib.sha256(b"block" + bytes.fromhex(ONE) + struct.pack("<256I", *ids[:BLOCK]))
    second = hashlib.sha256(b"block" + first.digest() + struct.pack("<256I", *ids[BLOCK:]))
    assert chain(ONE, ids) == [BlockKey(first.hexdigest()), BlockKey(second.hexdigest())]


@given(tokens)
def test_only_complete_blocks_have_keys(ids: list[TokenId]) -> None:
    assert len(chain(ONE, ids)) == len(ids) // BLOCK


@given(tokens, tokens)
def test_a_longer_prompt_has_the_keys_of_its_beginning(
    ids: list[TokenId], more: list[TokenId]
) -> None:
    whole = chain(ONE, [*ids, *more])
    assert whole[: len(ids) // BLOCK] == chain(ONE, ids)


@given(st.integers(0, 2 * BLOCK - 1))
def test_a_changed_token_changes_its_block_and_all_after_it(at: int) -> None:
    ids = [TokenId(7)] * (3 * BLOCK)
    changed = list(ids)
    changed[at] = TokenId(8)
    same = [a == b for a, b in zip(chain(ONE, ids), chain(ONE, changed), strict=True)]
    assert same == [block < at // BLOCK for block in range(3)]


def test_namespaces_share_no_key() -> None:
    ids = [TokenId(i) for i in range(BLOCK)]
    assert chain(ONE, ids) != chain(OTHER, ids)
    assert boundary(ONE, ids) != boundary(OTHER, ids)


def test_a_boundary_is_of_exactly_its_tokens() -> None:
    ids = [TokenId(i) for i in range(BLOCK)]
    assert boundary(ONE, ids) not in {boundary(ONE, ids[:-1]), *chain(ONE, ids)}


@given(tokens, st.lists(st.integers(0, 4 * BLOCK), max_size=8))
def test_many_lengths_have_the_keys_that_each_has_alone(
    ids: list[TokenId], lengths: list[int]
) -> None:
    for length, key in boundaries(ONE, ids, lengths).items():
        before = b"boundary" + bytes.fromhex(ONE) + struct.pack(f"<{length}I", *ids[:length])
        assert key == hashlib.sha256(before).hexdigest() == boundary(ONE, ids[:length])
    assert list(boundaries(ONE, ids, lengths)) == sorted({n for n in lengths if n <= len(ids)})
