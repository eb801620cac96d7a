"""The same formats by enumeration: every number decoded from its bits, and x looked up between two of them.

fp8 e4m3, bits s eeee mmm: (-1)^s 2^(e - 7) (1 + m / 8), and 2^-6 m / 8 for e = 0; e = 15 with m = 7 is NaN        (1)
fp8 e5m2, bits s eeeee mm: (-1)^s 2^(e - 15) (1 + m / 4), and 2^-14 m / 4 for e = 0; e = 31 is infinite or NaN      (2)
int8, int16: -C .. C; the smallest two's complement number is not used                                             (3)
nearest: the one of the two with the smaller distance; of two as near the one whose last bit is 0                   (4)
at random: the upper one for a share f of all coins, where the mean of both with weights 1 - f and f is x            (5)

Source: as `state_format`. Nothing is shared with its arithmetic.
"""

from collections.abc import Callable
from functools import cache, partial

import numpy as np

from ..errors import ParameterError
from ..shapes import Array


def _codes(bits: int) -> tuple[Array, Array]:
    whole = np.arange(1 - 2 ** (bits - 1), 2 ** (bits - 1))  # (3)
    return whole.astype(np.float64), whole % 2 == 0


def _floats(exponent: int, mantissa: int, bias: int, finite: Callable[[Array, Array], Array]) -> tuple[Array, Array]:
    bits = np.arange(2 ** (exponent + mantissa))
    e, m = bits >> mantissa, bits & (2**mantissa - 1)
    part = m / 2.0**mantissa
    value = np.where(e > 0, (1 + part) * 2.0 ** (e.astype(float) - bias), part * 2.0 ** (1.0 - bias))
    kept = finite(e, m)
    value, even = value[kept], (bits % 2 == 0)[kept]
    return np.concatenate([-value[:0:-1], value]), np.concatenate([even[:0:-1], even])


FORMATS: dict[str, Callable[[], tuple[Array, Array]]] = {
    "fp8_e4m3": partial(_floats, 4, 3, 7, lambda e, m: (e < 15) | (m < 7)),  # (1)
    "fp8_e5m2": partial(_floats, 5, 2, 15, lambda e, m: e < 31),  # (2)
    "fp16": partial(_floats, 5, 10, 15, lambda e, m: e < 31),
    "bf16": partial(_floats, 8, 7, 127, lambda e, m: e < 255),
    "int8": partial(_codes, 8),
    "int16": partial(_codes, 16),
}


@cache
def numbers(form: str) -> tuple[Array, Array]:
    """Every finite number of a format in ascending order, and whether its last bit is 0.

    Raises: ParameterError for a format that has too many.
    """
    if form not in FORMATS:
        raise ParameterError(
            f"the numbers of {form!r} cannot be listed; give one of {', '.join(FORMATS)}, of at most 16 bits"
        )
    return FORMATS[form]()


def nearest(x: Array, form: str) -> Array:
    """Equation (4); beyond the largest number that one."""
    low, high, even = _between(x, form)
    closer = np.abs(high - x) < np.abs(x - low)
    tie = np.abs(high - x) == np.abs(x - low)
    return np.where(closer | (tie & ~even), high, low)


def drawn(x: Array, form: str, coins: Array) -> Array:
    """Equation (5): the upper number where the coin is below the share f."""
    low, high, _ = _between(x, form)
    share = np.where(high > low, (x - low) / np.where(high > low, high - low, 1.0), 0.0)
    return low + (high - low) * (coins < share)


def _between(x: Array, form: str) -> tuple[Array, Array, Array]:
    """The two numbers around x, both x if it is one, and whether the lower one is even."""
    every, even = numbers(form)
    x = np.clip(x, every[0], every[-1])
    at = np.searchsorted(every, x, side="right") - 1
    exact = every[at] == x
    return every[at], every[np.where(exact, at, np.minimum(at + 1, len(every) - 1))], even[at]
