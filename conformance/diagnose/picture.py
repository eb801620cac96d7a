"""A small picture of where an output is wrong: heads down, tokens across, the worst over everything else.

Each position is one character: "." is within the bound; "1" to "9" exceed it by a factor of 2, 8, 32 .. (steps of 4). "9"
also marks values that are not finite. The first line names both axes with their sizes.
"""

import numpy as np

from ssmspec_ref.shapes import Array

TALLEST, WIDEST = 24, 64
"""Positions down and across; larger axes are merged."""
DOWN = ("h", "g", "c", "d", "b")
"""Axes to draw downwards; the first one that an output has."""
ACROSS = ("t", "l", "n", "w", "k", "p", "v", "e", "i")


def drawn(ratio: Array, axes: str) -> tuple[str, ...]:
    """The picture of an output from its errors in units of the bound; empty for an output without axes."""
    letters = axes.split()
    if not letters or ratio.size == 0:
        return ()
    down = next((axis for axis in DOWN if axis in letters), letters[0])
    across = next((axis for axis in ACROSS if axis in letters and axis != down), "")
    kept = [letters.index(axis) for axis in (down, across) if axis]
    others = tuple(axis for axis in range(ratio.ndim) if axis not in kept)
    with np.errstate(invalid="ignore"):
        plane = np.nan_to_num(ratio, nan=np.inf).max(axis=others)
    if across and kept[0] > kept[1]:
        plane = plane.T
    plane = plane.reshape(len(plane), -1)
    title = f"{down} {plane.shape[0]}" + (f" by {across} {plane.shape[1]}" if across else "")
    return (title, *("".join(map(_letter, row)) for row in _smaller(plane)))


def _smaller(plane: Array) -> Array:
    """At most this many positions, each the worst of those merged into it."""
    for axis, most in enumerate((TALLEST, WIDEST)):
        parts = np.array_split(np.arange(plane.shape[axis]), min(most, plane.shape[axis]))
        plane = np.stack([np.take(plane, part, axis).max(axis=axis) for part in parts], axis=axis)
    return plane


def _letter(ratio: float) -> str:
    if ratio <= 1:
        return "."
    return str(1 + min(8, int(np.log2(min(ratio, 2.0**40)) / 2)))
