"""One row of the batch as the sampler sees it: what it asked, and how far it is."""

from __future__ import annotations

from msgspec import Struct

from mlxbun.adapters.mlx_compute.row_masks import RowMask
from mlxbun.adapters.mlx_compute.sampling_graph import PENALTIES
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId


class SamplingRow(Struct):
    """One row of the batch, on the host.

    `index` counts the tokens drawn so far; the first `num_given` of them end `prompt_ids`, as an
    earlier attempt drew them.  `num_wide` counts those whose nucleus did not fit.
    """

    request_id: RequestId
    params: SamplingParams
    prompt_ids: tuple[TokenId, ...]
    index: int = 0
    num_given: int = 0
    num_wide: int = 0
    mask: RowMask | None = None

    @property
    def num_seen(self) -> int:
        """Tokens of the prompt and the answer so far."""
        return len(self.prompt_ids) + self.index - self.num_given


def is_ranked(params: SamplingParams) -> bool:
    """Whether the draw needs tokens in order of likelihood."""
    return params.top_p < 1.0 or params.top_k > 0


def has_penalty(params: SamplingParams, name: str) -> bool:
    """Whether the penalty of PENALTIES called `name` changes anything."""
    value: float = getattr(params, f"{name}_penalty")
    return value != (1.0 if name == "repetition" else 0.0)


def looks_all_the_way(params: SamplingParams) -> bool:
    return any(
        has_penalty(params, name) and not getattr(params, f"{name}_context_size")
        for name in PENALTIES
    )


def num_looked_at(row: SamplingRow) -> int:
    """Return how many tokens back the row's penalties look, 0 if it has none."""
    params = row.params
    return max(
        (
            getattr(params, f"{name}_context_size") or row.num_seen
            for name in PENALTIES
            if has_penalty(params, name)
        ),
        default=0,
    )
