"""The short convolution over a packed tree: each node convolves over the columns of its ancestors.

u   = B x                                                                             (1)
ext = [S | u_0 .. u_{N-1}]                                                            (2)
M_i = ext at the last w of [0 .. w-2 | w-1 + anc(i)], anc(i) in order, i the last     (3)
y_i = C_i (bias + sum_w weight_w M_i,w)                                               (4)

A node at depth d reads w - 1 - d columns of the state, none from depth w - 1 on, and never a column of a sibling.
"""

import numpy as np
from numpy import concatenate, einsum

from .. import tree
from ..checks import checked
from ..records import masked
from ..shapes import Ancestors, Array, Columns, Inners, Mask
from . import ShortConvParams, ShortConvWindow, check_columns


@checked
def scan(S: Columns, window: ShortConvWindow, ancestors: Ancestors, params: ShortConvParams) -> Inners:
    """The output at every node, equations (1) to (4) of the module; 0 at padding. No state is written.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, NotTopological, NotNested.
    Source: STree, section 3 (the layer's input features follow the tree as well).
    """
    check_columns(S, params)
    tree.check_nested(ancestors)
    window = masked(window, tree.live(ancestors))
    ext = concatenate([S, (window.B * window.x).transpose(0, 2, 1)], axis=2)  # (1) (2)
    outputs = [read(last(ext, ancestors[:, t], params.columns + 1), params) for t in range(window.x.shape[1])]  # (3)
    return window.C * np.stack(outputs, axis=1)  # (4)


def last(ext: Array, seen: Mask, count: int) -> Array:
    """The last `count` columns of [S | u], of u those that are seen; S has enough columns for every count up to w."""
    every = np.ones((len(seen), ext.shape[2] - seen.shape[1]), dtype=bool)
    order = np.argsort(concatenate([every, seen], axis=1), axis=1, kind="stable")[:, ext.shape[2] - count :]
    return np.take_along_axis(ext, order[:, None, :], axis=2)


def read(M: Array, params: ShortConvParams) -> Array:
    """bias + sum_w weight_w M_w."""
    c: Array = einsum("bdw, dw -> bd", M, params.weight)
    return c if params.bias is None else c + params.bias
