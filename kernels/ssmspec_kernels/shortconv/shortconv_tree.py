"""The short convolution over a packed tree, from one state, without writing any: each node reads the products on its path.

    u_i = B_i x_i                                                                                           (1)
    q_0 = i,  q_{k+1} = parent(q_k), and q_k - 1 after a root     node q, or column w - 1 + q of S for q < 0  (2)
    y_i = C_i (bias + sum_k weight_{w-1-k} product(q_k))          oldest first; 0 at padding                  (3)

parent(root) = -1, so that (2) continues from the tree into the state; a node of depth d reads w - d - 1 columns. A program
owns a tile of channels and all nodes of one row: each input and each column is read once, and the nodes exchange the products
on the chip. The bits are those of `shortconv_scan` along each path. The tiles are those of `conv_tree`, not measured with
gates. Layout: S (s, d, w - 1), oldest first, a pool that rows index through `slots`; a row with a negative slot is
padding and is skipped. Bound by the bytes of the inputs.
"""

from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import Unsupported

from ..conv.conv_taps import load_columns, load_filters
from ..conv.conv_tree import MOST, tile
from ..launch import AS_WRITTEN, strides
from ..row import Axes, Slots, launcher, moved, points
from . import shortconv_columns as short
from .shortconv_columns import check_window, load_product


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
    b, t, d, w = (axes[a] for a in "btdw")
    if t > MOST:
        raise Unsupported(f"the tree holds {t} nodes, and this kernel takes at most {MOST}; split it")
    y = torch.empty_like(x) if out is None else out
    block_t = triton.next_power_of_2(t)
    block, warps = tile(b, d, block_t, w)
    block, warps = block_d or block, num_warps or warps
    _shortconv_tree_kernel[(triton.cdiv(d, block), b)](
        S, B, C, x, parents, weight, bias, slots, y,
        *strides(S, 2), *strides(B, 2), *strides(C, 2), *strides(x, 2), *strides(parents, 2), *strides(weight, 2),
        *strides(y, 2), T=t, D=d, W=w, BLOCK_T=block_t, BLOCK_D=block, num_warps=warps, **AS_WRITTEN,
    )  # fmt: skip
    return y


@triton.jit
def _shortconv_tree_kernel(
    S, B, C, x, parents, weight, bias, slots, y,
    stride_S_s, stride_S_d, stride_B_b, stride_B_t, stride_C_b, stride_C_t, stride_x_b, stride_x_t, stride_parents_b,
    stride_parents_t, stride_weight_d, stride_weight_w, stride_y_b, stride_y_t,
    T: tl.constexpr, D: tl.constexpr, W: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        d = tl.program_id(0).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)
        inside = d < D
        state = S + slot * stride_S_s
        window = load_columns(state, None, None, 0, 0, True, d, inside, stride_S_d, 0, 0, W - 1, 0)
        taps, shift = load_filters(weight, bias, d, inside, stride_weight_d, stride_weight_w, W)
        i = tl.arange(0, BLOCK_T)
        t = i.to(tl.int64)
        given = tl.load(parents + b * stride_parents_b + t * stride_parents_t, mask=i < T, other=-2).to(tl.int32)
        real, parent = given >= -1, tl.minimum(given, i - 1)
        whole = real[:, None] & inside[None, :]
        B_at, x_at = B + b * stride_B_b + t[:, None] * stride_B_t, x + b * stride_x_b + t[:, None] * stride_x_t
        products = load_product(B_at + d[None, :], x_at + d[None, :], whole)  # (1)
        C_at = C + b * stride_C_b + t[:, None] * stride_C_t + d[None, :]
        C_i = tl.load(C_at, mask=whole, other=0.0).to(tl.float32)
        q, path_back = parent, ()
        for _ in tl.static_range(1, W):
            path_back += (q,)  # type: ignore[assignment]
            at = tl.maximum(q, 0)
            q = tl.where(q >= 0, tl.gather(parent, at, 0), q - 1)  # (2)
        acc = tl.broadcast_to(shift[None, :], (BLOCK_T, BLOCK_D))
        for k in tl.static_range(W - 1):  # oldest first, in the order of a chain: the same bits
            q = path_back[W - 2 - k]
            value = tl.gather(products, tl.broadcast_to(tl.maximum(q, 0)[:, None], (BLOCK_T, BLOCK_D)), 0)
            for m in tl.static_range(1, W - k):
                value = tl.where((q == -m)[:, None], window[W - 1 - m][None, :], value)
            acc += value * taps[k][None, :]
        acc += products * taps[W - 1][None, :]
        acc = tl.where(real[:, None], C_i * acc, 0.0)  # (3)
        y_at = y + b * stride_y_b + t[:, None] * stride_y_t + d[None, :]
        tl.store(y_at, acc.to(y.dtype.element_ty), mask=(i < T)[:, None] & inside[None, :])
