"""Causal convolution along the ancestors of each node of a tree.

ext = [M | u_0 .. u_{N-1}]                                         (1)
window of i = ext at the last w of [0 .. w-1 | w + anc(i)]         (2)
y_i = act(bias + sum_w weight_w window_w)                          (3)

A node at depth d reads w - d - 1 columns of the state, and none if d >= w - 1. No state is written.
"""

import numpy as np
from numpy import concatenate, flatnonzero, take_along_axis, where

from .. import tree
from ..checks import checked
from ..shapes import Ancestors, Array, Channels, ConvState, Parents
from . import ConvParams, read


@checked
def scan(M: ConvState, u: Channels, parents: Parents, params: ConvParams) -> Channels:
    """The output at every node of a tree: equations (1) to (3) of the module; 0 at padding.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, NotTopological.
    Source: STree, section 3 (the layer's input features follow the tree as well).
    """
    return scan_ancestors(M, u, tree.ancestors(parents), params)


@checked
def scan_ancestors(M: ConvState, u: Channels, ancestors: Ancestors, params: ConvParams) -> Channels:
    """`scan` for a mask with nested ancestor sets.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, NotTopological, NotNested.
    """
    tree.check_nested(ancestors)
    live = tree.live(ancestors)
    ext = concatenate([M, u.transpose(0, 2, 1)], axis=2)  # (1)
    outputs = []
    for t in range(u.shape[1]):
        columns = _columns(ancestors[:, t], params.width)
        window = take_along_axis(ext, columns[:, None, :], axis=2)  # (2)
        outputs.append(where(live[:, t, None], read(window, params), 0.0))  # (3)
    return np.stack(outputs, axis=1)


def _columns(ancestors: Array, width: int) -> Array:
    """The columns of ext that form the window of one node, row by row."""
    state = np.arange(width)
    return np.stack([concatenate([state, width + flatnonzero(row)])[-width:] for row in ancestors])
