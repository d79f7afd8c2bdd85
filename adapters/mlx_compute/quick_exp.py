"""The exponential, for MLX's CPU build, whose own computes one number at a time."""

from __future__ import annotations

import mlx.core as mx

_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is ln 2; the first has few bits
_LOG2_E = 1.4426950408889634
# 1.5 * 2^23: what is added to it is rounded to a whole number, which its last bits then are.
_ROUND = 12_582_912.0
_ROUND_BITS = 0x4B400000


def quick_exp(x: mx.array) -> mx.array:
    """Return exp(x) of float32 x <= 0, -inf too, within 3e-7 of it; below -88 it is 0."""
    return bounded_exp(mx.maximum(x, -1e5))


def bounded_exp(x: mx.array) -> mx.array:
    """Return exp(x) of float32 x from -1e6 to 0, within 3e-7 of it; below -88 it is 0.

    2^n times a polynomial for the rest, the exponent put together from its bits; nothing in it
    compares floats, so the C++ compiler makes vector instructions of all of it.  The reduction
    in two steps is Cody and Waite's (1980).
    """
    rounded = x * _LOG2_E + _ROUND
    bits = mx.maximum(mx.view(rounded, mx.int32), _ROUND_BITS - 127)  # exponent 0 is the number 0
    return _series(x, rounded - _ROUND) * mx.view((bits << 23) + (127 << 23), mx.float32)


def quick_sigmoid(x: mx.array) -> mx.array:
    """Return 1 / (1 + exp(-x)) of float32 x, within 4e-7 of it; not for shapeless compilation.

    Above 87 it is 1; below -87 it is 2e-38, where MLX's goes on to 0.
    """
    power = mx.clip(-x, -87.0, 87.0)
    rounded = power * _LOG2_E + _ROUND
    exponent = (mx.view(rounded, mx.int32) << 23) + (127 << 23)
    return 1.0 / (1.0 + _series(power, rounded - _ROUND) * mx.view(exponent, mx.float32))


def _series(x: mx.array, count: mx.array) -> mx.array:
    """Return exp(x - count * ln 2), where that is within half of ln 2 or little more."""
    t = (x - count * _LN2_HIGH) - count * _LN2_LOW
    series = 1 / 120 + t / 720
    for term in (1 / 24, 1 / 6, 0.5, 1.0, 1.0):
        series = term + t * series
    return series
