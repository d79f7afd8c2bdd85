"""Identity: what makes another namespace, and what does not."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.domain.checkpoint import FORMAT, Identity

FILES = {"config.json": "aa" * 32, "model.safetensors": "bb" * 32, "tokenizer.json": "cc" * 32}
THIS = Identity(FILES, "plain", "mlx 0.32.4 cpu x86_64")


@pytest.mark.parametrize(
    "other",
    [
        msgspec.structs.replace(THIS, files=FILES | {"model.safetensors": "b0" * 32}),
        msgspec.structs.replace(THIS, files=FILES | {"added_tokens.json": "dd" * 32}),
        msgspec.structs.replace(THIS, files={k: v for k, v in FILES.items() if "tok" not in k}),
        msgspec.structs.replace(
            THIS, files=FILES | {"config.json": "cc" * 32, "tokenizer.json": "aa" * 32}
        ),
        msgspec.structs.replace(THIS, scheme="affine 8"),
        msgspec.structs.replace(THIS, arithmetic="mlx 0.32.5 cpu x86_64"),
        msgspec.structs.replace(THIS, scheme=THIS.arithmetic, arithmetic=THIS.scheme),
    ],
    ids=["weights", "one more", "one less", "swapped", "scheme", "arithmetic", "fields swapped"],
)
def test_whatever_state_depends_on_makes_another_namespace(other: Identity) -> None:
    assert other.namespace != THIS.namespace


def test_the_order_of_files_makes_none() -> None:
    turned = msgspec.structs.replace(THIS, files=dict(reversed(FILES.items())))
    assert (turned.text, turned.namespace) == (THIS.text, THIS.namespace)


def test_a_namespace_is_a_sha256_and_its_text_says_what_is_in_it() -> None:
    assert len(bytes.fromhex(THIS.namespace)) == 32
    said = json.loads(THIS.text)
    assert said == {
        "arithmetic": THIS.arithmetic,
        "files": FILES,
        "format": FORMAT,
        "scheme": "plain",
    }


def test_a_namespace_stays_what_it_is() -> None:
    """What is on disks must be found again: this changes with FORMAT alone.

    The expected digest is that of `sha256sum` on the text.
    """
    assert THIS.text == (
        '{"arithmetic":"mlx 0.32.4 cpu x86_64","files":{"config.json":"' + "aa" * 32
        + '","model.safetensors":"' + "bb" * 32 + '","tokenizer.json":"' + "cc" * 32
        + '"},"format":1,"scheme":"plain"}'
    )  # fmt: skip
    assert THIS.namespace == "bb587210368f8f6a4da81b9702809f8f178ff9129c1560fa3c75f3d0f2f473aa"


names = st.text(max_size=8)
identities = st.builds(Identity, st.dictionaries(names, names, max_size=3), names, names)


@given(identities, identities)
def test_only_equal_identities_share_a_namespace(one: Identity, other: Identity) -> None:
    """Whatever the words, quotes and commas included, no two are told alike."""
    assert (one.namespace == other.namespace) == (one == other)
