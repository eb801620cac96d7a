"""SSD (Mamba-2) over a packed tree, from one state, without writing any.

    G_i  = sum of dt A over the path from the root to i            (1)
    W_ij = exp(G_i - G_j) dt_j (C_i . B_j)        j on that path   (2)
    y    = W x + exp(G) (C S^T) + D x, then y silu(z)              (3)

The kernel is that of `ssd_window`; its blocks are sized by the tree, 16 to 128 nodes. Trees of 33 to 64 nodes have their own
kernel for some devices and shapes (`ssd_tree_large`). Each row of the batch has its own tree.
The accepted path is committed by a scan of its tokens (`ssd_scan`, or `ssd_replay_scan` at the next window).

Layout: S (s, h, p, n) through `slots`; ancestors (b, t, t), node t sees node j, as `ssmspec_ref.tree.ancestors` computes it.
Defined for masks whose ancestor sets nest; a node that does not see itself is padding, whatever its row contains.
Bound by the bytes of the state: one read, no write.
Source: STree, section 3, equations 5 and 6.
"""

import torch
from torch import Tensor

from ssmspec_ref.errors import ShapeMismatch

from ..row import Ancestors, Axes, Slots, launcher, moved
from . import ssd_inputs as ssd
from .ssd_inputs import Inputs
from .ssd_tree_large import launch_large, supports
from .ssd_window import launch


def traffic_bytes(b: int, t: int, h: int, p: int, n: int, g: int, *, state: int = 4, io: int = 2, z: bool = False) -> int:
    """Bytes that must cross the memory bus for b live rows of t nodes: a scan without its write, and the mask.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    axes = {"s": b, "b": b, "t": t, "j": t, "h": h, "p": p, "n": n, "g": g}
    return moved(ssd_tree_scan, axes, {"state": state, "io": io}, without=() if z else ("z",))


@launcher
def ssd_tree_scan(
    axes: Axes,
    S: ssd.Start,
    x: ssd.Heads,
    dt: ssd.PerHeads,
    A: ssd.Decay,
    B: ssd.Projs,
    C: ssd.Projs,
    ancestors: Ancestors,
    *,
    D: ssd.Skip | None = None,
    z: ssd.Heads | None = None,
    dt_bias: ssd.PerHead | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Slots | None = None,
    out: ssd.Outputs | None = None,
    block_p: int | None = None,
    program_p: int | None = None,
    heads: int | None = None,
    num_warps: int | None = None,
    stages: int | None = None,
    large: bool = True,
) -> Tensor:
    """The outputs (b, t, h, p) at every node of a tree for each row, from the states S[slots], which are only read.

    The output at a padding node is 0; that of a padding row is not written. Rows may share a state.
    `large` False: not by the kernel of large trees, which is not used either if `block_p`, `program_p`, `num_warps` or
    `stages` is given.

    Raises: ShapeMismatch, PrecisionError, ParameterError, Unsupported (more than 128 nodes), before anything is written.
    """
    given = Inputs(axes, S, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, slots)
    t, columns = given.axes["t"], given.axes["j"]
    if columns != t:
        raise ShapeMismatch(f"ancestors has {columns} columns for {t} nodes; give one for each node")
    tiled = any(tile is not None for tile in (block_p, program_p, num_warps, stages))
    if large and not tiled and supports(given):
        y = torch.empty_like(x) if out is None else out
        launch_large(given, ancestors, y, heads)
        return y
    return launch(given, None, ancestors, False, out, (block_p, program_p, heads, num_warps, stages))
