"""Identity: whose prefix state may be reused by whom.

State is named by what it was computed from: the content of the model's files, the precision and
layout of keys and values, the arithmetic that ran.  Names, paths and dates do not count.  Whatever
differs makes another namespace, whose blocks are ignored here and never deleted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from msgspec import Struct

from mlxbun.domain.blocks import Namespace

FORMAT = 1  # of blocks' content: what a tensor's name means


class Identity(Struct, frozen=True):
    """What state depends on.

    `files`: content digests of the model's configuration, weights and tokenizer, by file name.
    `scheme`: how keys and values are kept, and in which precision.  `arithmetic`: MLX's version,
    the kind of device and its architecture, and what of ours changes numerics.
    """

    files: Mapping[str, str]
    scheme: str
    arithmetic: str

    @property
    def text(self) -> str:
        """The identity as JSON, one way only."""
        return json.dumps(
            {
                "arithmetic": self.arithmetic,
                "files": dict(sorted(self.files.items())),
                "format": FORMAT,
                "scheme": self.scheme,
            },
            separators=(",", ":"),
            sort_keys=True,
        )

    @property
    def namespace(self) -> Namespace:
        return Namespace(hashlib.sha256(self.text.encode()).hexdigest())
