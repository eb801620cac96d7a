"""Format numbers so that a reader can tell them apart: a ratio near 1, and two nearly equal values."""

from math import floor, log10

MOST = 17
"""Digits that distinguish any two doubles."""


def ratio(x: float, digits: int = 3) -> str:
    """`digits` digits; for x near 1, digits of its distance from 1: 1.44, 0.9982, 1.000035."""
    off = abs(x - 1)
    return f"{x:.{digits}g}" if off > 0.1 or off < 1e-12 else f"{x:.{digits - 2 - floor(log10(off))}f}"


def apart(one: float, other: float, digits: int) -> tuple[str, str]:
    """Both values with at least `digits` digits, and with two more than are needed to distinguish them."""
    told = next(
        (n for n in range(digits, MOST) if f"{one:.{n - 2}g}" != f"{other:.{n - 2}g}"), digits if one == other else MOST
    )
    return f"{one:.{told}g}", f"{other:.{told}g}"
