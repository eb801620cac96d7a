"""The short convolution over a packed tree, from one state, without writing any: each node reads the products on its path.

    u_i = B_i x_i                                                                                           (1)
    q_0 = i,  q_{k+1} = parent(q_k), and q_k - 1 after a root     node q, or column w - 1 + q of S for q < 0  (2)
    y_i = C_i (bias + sum_k weight_{w-1-k} product(q_k))          oldest first; 0 at padding                  (3)

parent(root) = -1, so that (2) continues from the tree into the state; a node of depth d reads w - d - 1 columns. The kernel
is that of `conv_tree`, with products as inputs and outputs times C. The bits are those of `shortconv_scan` along each path.
The tiles are those of `conv_tree`, not measured with gates. Layout: S (s, d, w - 1), oldest first, a pool that rows index
through `slots`; a row with a negative slot is padding and is skipped. Bound by the bytes of the inputs.
"""

from typing import Annotated

import torch
from torch import Tensor

from ..conv.conv_tree import launch_tree
from ..row import Axes, Slots, launcher, moved, points
from . import shortconv_columns as short
from .shortconv_columns import check_window


def traffic_bytes(b: int, nodes: int, d: int, w: int, *, state: int = 4, io: int = 2) -> int:
    """Bytes that must cross the memory bus for b rows and `nodes` nodes in all (outputs at padding are zeros, not counted).

    Units: bytes; `state` and `io` are the bytes of an element. Parameters and parents are left out.
    """
    return moved(shortconv_tree, {"s": b, "b": 1, "t": nodes, "d": d, "q": w - 1}, {"state": state, "io": io})


@launcher
def shortconv_tree(
    axes: Axes,
    S: short.Start,
    B: short.Inners,
    C: short.Inners,
    x: short.Inners,
    weight: short.Taps,
    parents: Annotated[Tensor, points("b t")],
    *,
    bias: short.Bias | None = None,
    slots: Slots | None = None,
    out: short.Outputs | None = None,
    block_d: int | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """The outputs (b, t, d) at every node of each row's tree over S[slots], which is only read: equations (1) to (3).

    `parents` (b, t) gives each row its own tree: -1 at a root, -2 at padding; a parent comes before its children, which the
    kernel cannot check (a later one is read as the previous node, so that nothing out of bounds is read). Padding is not
    read; its output is 0. Several rows may share a state. The output of a padding row is not written.

    Raises: ShapeMismatch, PrecisionError, ParameterError, Unsupported (more than 128 nodes), before anything is written.
    """
    check_window(axes, slots)
    y = torch.empty_like(x) if out is None else out
    launch_tree(
        axes, S, B, C, x, parents, weight, bias, slots, None, None, None, y, block_d, num_warps, KEPT=axes["q"],
        ACTIVATION=False, COMMIT=False, OVERLAP=False,
    )  # fmt: skip
    return y
