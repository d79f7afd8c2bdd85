"""The uniform numbers of draws, many rows and steps at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(
    seeds: npt.NDArray[np.uint64], index: npt.NDArray[np.uint64], stream: int
) -> npt.NDArray[np.float64]:
    """Return `domain.sampling.uniform` of each row, at once: [rows]."""
    with np.errstate(over="ignore"):
        steps = np.uint64(2) * index + np.uint64(stream + 1)
        bits = _mix(_mix(seeds + _GOLDEN) + steps * _GOLDEN) >> np.uint64(40)
    return np.asarray(bits * 2.0**-24, dtype=np.float64)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
