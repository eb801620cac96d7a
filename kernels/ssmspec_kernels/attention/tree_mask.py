"""The tree mask: which nodes lie on the path from the root to each node, and the depth of each node.

    up_0 = i,  up_{d+1} = parent(up_d)                    until there is no parent        (1)
    L_ij = j is one of the up_d                                                           (2)
    depth_i = sum_j L_ij - 1                                                              (3)

A padding node has no ancestors, not even itself, and depth -1. The position of node i after T committed tokens is
T + depth_i. The walk (1) only goes to smaller indices: a parent that does not precede its child ends it, so that
no value in `parents` makes the kernel read out of bounds or loop forever.

A program owns BLOCK_I nodes of one row and walks up from all of them at once: as many dependent loads as the tree is deep.
Layout: parents (b, t) with -1 at the root and -2 at padding, ancestors (b, t, t), depths (b, t). Bound by latency.
"""

from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ShapeMismatch, Unsupported

from ..launch import INDICES
from ..row import BOOL, Axes, launcher, moved, reads, writes
from ..shared.tuning import H200

MOST_NODES = 128
PADDING = -2


def traffic_bytes(b: int, t: int, *, index: int = 8) -> int:
    """Bytes that must cross the memory bus: parents, mask, depths. Units: bytes; `index` those of a parent and of a depth."""
    return moved(tree_mask, {"b": b, "t": t, "j": t}, {"index": index})


def check_nodes(t: int) -> None:
    """Raises: Unsupported for trees of more nodes than a kernel supports."""
    if t > MOST_NODES:
        raise Unsupported(f"the trees have {t} nodes, but the kernel takes at most {MOST_NODES}; give smaller trees")


@launcher
def tree_mask(
    axes: Axes,
    parents: Annotated[Tensor, reads("b t", INDICES)],
    *,
    ancestors: Annotated[Tensor, writes("b t j", BOOL)] | None = None,
    depths: Annotated[Tensor, writes("b t", INDICES)] | None = None,
    block_i: int = H200["tree_mask"]["block_i"],
    num_warps: int = H200["tree_mask"]["warps"],
) -> tuple[Tensor, Tensor]:
    """The mask (b, t, t) and the depths (b, t) of a batch of trees of up to 128 nodes.

    Raises: ShapeMismatch, PrecisionError, Unsupported (more nodes), before anything is written.
    """
    b, t = axes["b"], axes["t"]
    if axes.get("j", t) != t:
        raise ShapeMismatch(f"ancestors has {t} rows and {axes['j']} columns; give one of each for every node")
    check_nodes(t)
    mask = torch.empty(b, t, t, dtype=torch.bool, device=parents.device) if ancestors is None else ancestors
    depth = torch.empty(b, t, dtype=parents.dtype, device=parents.device) if depths is None else depths
    _tree_mask_kernel[(triton.cdiv(t, block_i), b)](
        parents, mask, depth, *parents.stride(), *mask.stride(), *depth.stride(),
        T=t, BLOCK_I=block_i, BLOCK_T=triton.next_power_of_2(t), num_warps=num_warps,
    )  # fmt: skip
    return mask, depth


@triton.jit
def _tree_mask_kernel(
    parents, ancestors, depths, stride_par_b, stride_par_t, stride_anc_b, stride_anc_t, stride_anc_j,
    stride_dep_b, stride_dep_t,
    T: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK_I + tl.arange(0, BLOCK_I)
    j = tl.arange(0, BLOCK_T)
    row = parents + b * stride_par_b
    own = tl.load(row + i.to(tl.int64) * stride_par_t, mask=i < T, other=-2).to(tl.int32)
    up = tl.where(own >= -1, i, -1)
    seen = tl.zeros((BLOCK_I, BLOCK_T), tl.int1)
    while tl.max(up, axis=0) >= 0:
        seen = seen | (up[:, None] == j[None, :])  # (2)
        parent = tl.load(row + up.to(tl.int64) * stride_par_t, mask=up >= 0, other=-1).to(tl.int32)
        up = tl.where(parent < up, parent, -1)  # (1)
    depth = tl.sum(seen.to(tl.int32), axis=1) - 1  # (3)
    at = ancestors + b * stride_anc_b + i.to(tl.int64)[:, None] * stride_anc_t + j.to(tl.int64)[None, :] * stride_anc_j
    tl.store(at, seen, mask=(i < T)[:, None] & (j < T)[None, :])
    tl.store(depths + b * stride_dep_b + i.to(tl.int64) * stride_dep_t, depth.to(depths.dtype.element_ty), mask=i < T)
