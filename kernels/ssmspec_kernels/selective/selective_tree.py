"""Selective scan (Mamba-1) over a packed tree, from one state, without writing any.

    dt_i = softplus(dt_raw_i + dt_bias),   a_i = exp(dt_i A),   U_i = dt_i x_i B_i^T      (1)
    S_i  = a_i S_parent(i) + U_i,          S_parent(root) = S                             (2)
    y_i  = S_i C_i + D x_i, then y silu(z) where z is given                               (3)

Each node is an affine map (a_i, U_i) of its parent's state; the map from the root's state is their product along the path.
All nodes of one row double their reach at a time: with p_i the node before what (a_i, U_i) covers,

    U_i <- a_i U_p + U_i,   a_i <- a_i a_p,   p_i <- p_p        until every p is a root's parent    (4)

so that a tree of depth k takes log2 k rounds of (4), each decay is one exp, and the state and each input are read once. The
decay differs from state to state, so that C B^T cannot be taken out of the sum over n, as for SSD.

Layout: S (s, d, n), a pool that rows reach through `slots`; a row with a negative slot is padding and touches nothing.
Bound by exp and by the exchange (4) on the chip for many nodes, by the bytes of the state for few.
"""

from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import Unsupported

from ..launch import check_pool, strides
from ..row import FP32, Axes, Slots, launcher, moved, points, reads, weighs, writes
from ..shared.functions import silu, softplus
from ..shared.tuning import H200

MOST = 128


def traffic_bytes(b: int, nodes: int, d: int, n: int, *, state: int = 4, io: int = 2, z: bool = False) -> int:
    """Bytes that must cross the memory bus for b live rows and `nodes` nodes in all (outputs at padding are not counted).

    The state is read; x, B, C, dt, z are read; y is written; parameters are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    axes = {"s": b, "b": 1, "t": nodes, "d": d, "n": n}
    return moved(selective_tree, axes, {"state": state, "io": io}, without=() if z else ("z",))


@launcher
def selective_tree(
    axes: Axes,
    S: Annotated[Tensor, reads("s d n", size="state")],
    x: Annotated[Tensor, reads("b t d")],
    dt: Annotated[Tensor, reads("b t d")],
    A: Annotated[Tensor, weighs("d n", FP32)],
    B: Annotated[Tensor, reads("b t n")],
    C: Annotated[Tensor, reads("b t n")],
    parents: Annotated[Tensor, points("b t")],
    *,
    D: Annotated[Tensor, weighs("d")] | None = None,
    z: Annotated[Tensor, reads("b t d")] | None = None,
    dt_bias: Annotated[Tensor, weighs("d")] | None = None,
    dt_softplus: bool = True,
    slots: Slots | None = None,
    out: Annotated[Tensor, writes("b t d")] | None = None,
    block_d: int | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """The outputs (b, t, d) at every node of a tree that starts from S[slots]: equations (1) to (3).

    `parents` (b, t) gives each row its own tree: -1 at a root, -2 at padding; a parent comes before its children, which the
    kernel cannot check (a later one is taken as the node before, so that nothing outside is read). Padding is
    not read; its output is 0. `slots` (b) names the state of each row (None: row b has slot b); rows may share one. The
    output of a padding row is not written.

    Raises: ShapeMismatch, PrecisionError, ParameterError, Unsupported (more than 128 nodes), before anything is written.
    """
    b, t, d, n = (axes[k] for k in "btdn")
    check_pool(axes["s"], b, slots)
    if t > MOST:
        raise Unsupported(f"the tree holds {t} nodes, and this kernel takes at most {MOST}; split it")
    y = torch.empty_like(x) if out is None else out
    block_t, block_n = triton.next_power_of_2(t), triton.next_power_of_2(n)
    block, warps = _tile(d, block_t * block_n)
    block, warps = block_d or block, num_warps or warps
    _selective_tree_kernel[(triton.cdiv(d, block), b)](
        S, x, dt, A, B, C, parents, D, z, dt_bias, slots, y,
        *strides(S, 2), *strides(x, 2), *strides(dt, 2), *strides(A, 2), *strides(B, 2), *strides(C, 2), *strides(parents, 2),
        *strides(z, 2), *strides(y, 2), T=t, DIM=d, N=n, SOFTPLUS=dt_softplus,
        BLOCK_T=block_t, BLOCK_D=block, BLOCK_N=block_n, num_warps=warps,
    )  # fmt: skip
    return y


def _tile(d: int, maps: int) -> tuple[int, int]:
    """Channels and warps of a program: a number of maps (a, U), sized by the tree."""
    row = H200["selective_tree"]
    warps = row["many_maps_warps" if maps >= row["many_maps"] else "warps"]
    return min(triton.next_power_of_2(d), max(1, row["maps"] // maps)), warps


@triton.jit
def _selective_tree_kernel(
    S, x, dt, A, B, C, parents, D, z, dt_bias, slots, y,
    stride_S_s, stride_S_d, stride_x_b, stride_x_t, stride_dt_b, stride_dt_t, stride_A_d, stride_A_n, stride_B_b, stride_B_t,
    stride_C_b, stride_C_t, stride_parents_b, stride_parents_t, stride_z_b, stride_z_t, stride_y_b, stride_y_t,
    T: tl.constexpr, DIM: tl.constexpr, N: tl.constexpr, SOFTPLUS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        i = tl.arange(0, BLOCK_T)
        t = i.to(tl.int64)
        d = tl.program_id(0).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)
        n = tl.arange(0, BLOCK_N)
        parent = tl.load(parents + b * stride_parents_b + t * stride_parents_t, mask=i < T, other=-2).to(tl.int32)
        real = parent >= -1
        channels = real[:, None] & (d < DIM)[None, :]
        states = real[:, None] & (n < N)[None, :]
        inside = (d < DIM)[:, None] & (n < N)[None, :]
        step = tl.load(dt + b * stride_dt_b + t[:, None] * stride_dt_t + d[None, :], mask=channels, other=0.0).to(tl.float32)
        if dt_bias is not None:
            step += tl.load(dt_bias + d, mask=d < DIM, other=0.0).to(tl.float32)[None, :]
        if SOFTPLUS:
            step = softplus(step)
        x_t = tl.load(x + b * stride_x_b + t[:, None] * stride_x_t + d[None, :], mask=channels, other=0.0).to(tl.float32)
        B_t = tl.load(B + b * stride_B_b + t[:, None] * stride_B_t + n[None, :], mask=states, other=0.0).to(tl.float32)
        C_t = tl.load(C + b * stride_C_b + t[:, None] * stride_C_t + n[None, :], mask=states, other=0.0).to(tl.float32)
        log_decay = tl.load(A + d[:, None] * stride_A_d + n[None, :] * stride_A_n, mask=inside, other=0.0)
        a = tl.exp(step[:, :, None] * log_decay[None, :, :])
        U = (step * x_t)[:, :, None] * B_t[:, None, :]  # (1)
        p = tl.minimum(parent, i - 1)
        while tl.max(p, axis=0) >= 0:
            at = tl.maximum(p, 0)
            rows = tl.broadcast_to(at[:, None, None], (BLOCK_T, BLOCK_D, BLOCK_N))
            reached = (p >= 0)[:, None, None]
            U = tl.where(reached, a * tl.gather(U, rows, 0) + U, U)
            a = tl.where(reached, a * tl.gather(a, rows, 0), a)
            p = tl.where(p >= 0, tl.gather(p, at, 0), p)  # (4)
        state = tl.load(S + slot * stride_S_s + d[:, None] * stride_S_d + n[None, :], mask=inside, other=0.0).to(tl.float32)
        y_t = tl.sum((a * state[None, :, :] + U) * C_t[:, None, :], axis=2)  # (2) (3)
        if D is not None:
            y_t += tl.load(D + d, mask=d < DIM, other=0.0).to(tl.float32)[None, :] * x_t
        if z is not None:
            z_at = z + b * stride_z_b + t[:, None] * stride_z_t + d[None, :]
            y_t *= silu(tl.load(z_at, mask=channels, other=0.0).to(tl.float32))
        y_t = tl.where(real[:, None], y_t, 0.0)
        y_at = y + b * stride_y_b + t[:, None] * stride_y_t + d[None, :]
        tl.store(y_at, y_t.to(y.dtype.element_ty), mask=(i < T)[:, None] & (d < DIM)[None, :])
