"""Trees by running the plain recurrence along every path from the root: an independent derivation of every tree scan.

y_i = the last output of a scan over anc(i), in order, from the state that all nodes start from.

It uses no decays, solves or windows, and works for anything that has a scan: a convolution, a recurrence, a whole layer,
attention over a cache. It computes N paths where the closed forms compute N nodes.

Source: STree, section 1 and figure 1 (the unrolled tree).
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ..checks import checked
from ..records import along, rows
from ..shapes import Ancestors, Array

S = TypeVar("S")
W = TypeVar("W")


@checked
def scan(plain: Callable[[S, W], tuple[Array, Any]], state: S, window: W, ancestors: Ancestors) -> Array:
    """The output of `plain(state, window)` at the end of every node's path; 0 at padding, which is never read.

    `state` and `window` are arrays or records whose first axis is the row.

    Raises: PrecisionError, ShapeMismatch, EmptyWindow, and what `plain` raises.
    """
    outputs: dict[tuple[int, int], Array] = {}
    for b, i in np.argwhere(ancestors.any(axis=2)):
        row, path = np.array([b]), np.flatnonzero(ancestors[b, i])
        y, _ = plain(rows(state, row), along(rows(window, row), path[None]))
        outputs[int(b), int(i)] = y[0, -1]
    if not outputs:  # padding alone: any token tells the shape, and whatever it holds is not used
        with np.errstate(all="ignore"):
            y, _ = plain(state, along(window, np.zeros((len(ancestors), 1), dtype=np.int64)))
        return np.zeros(ancestors.shape[:2] + y.shape[2:])
    return _packed(outputs, ancestors.shape[:2])


def _packed(outputs: dict[tuple[int, int], Array], shape: tuple[int, ...]) -> Array:
    """The outputs by row and node, 0 if there is none."""
    y = np.zeros(shape + next(iter(outputs.values())).shape)
    for node, value in outputs.items():
        y[node] = value
    return y
