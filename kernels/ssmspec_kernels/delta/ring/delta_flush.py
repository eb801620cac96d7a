"""Adds the history of a ring to its checkpoint on demand: before a state leaves the buffer, or to make room.

    S_0' = diag(exp G_h) S_0 + sum_{j held} diag(exp(G_h - G_j)) k^_j u_j^T        as in `delta_buffered` (5)

Windows and single tokens flush themselves; this is for all rows at once, between them. The cursors are reset afterwards,
once for all layers (`cursors.commit_flush`). Layout: S_0 (s, h, k, v), the ring as in `delta_ring`.
Bound by the bytes of the state: one read, one write.
"""

from typing import Annotated

import torch
import triton
import triton.language as tl

from ssmspec_ref.errors import ParameterError

from ...launch import check_pool, divides, strides
from ...row import Axes, Only, Slots, launcher
from ...shared.strides import KeyStrides
from ...shared.tuning import H200
from ..delta_inputs import State
from ..delta_window import last, norms, state_after
from .delta_ring import Ring, entry_bytes, load_history


def traffic_bytes(
    held: list[int], g: int, h: int, k: int, v: int, *, state: int = 4, io: int = 2, u: int = 2, channel: bool = False
) -> int:
    """Bytes that must cross the memory bus for live rows with `held` entries each; cursors are left out."""
    return 2 * len(held) * h * k * v * state + sum(held) * entry_bytes(g, h, k, v, io=io, u=u, channel=channel)


@launcher
def delta_flush(
    axes: Axes,
    S: State,
    ring: Annotated[Ring, Only()],
    rows: int,
    *,
    l2_norm: bool = True,
    eps: float = 1e-6,
    slots: Slots | None = None,
    block_v: int | None = None,
    num_warps: int | None = None,
) -> None:
    """Advances the checkpoints S[slots] of `rows` rows by all that their rings hold, in place.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    divides(axes["g"], axes["h"])
    if rows < 1 or axes.get("b", rows) != rows or not eps > 0:
        raise ParameterError(f"rows and eps are {rows} and {eps}; give the number of slots, and eps > 0")
    check_pool(axes["s"], rows, slots)
    block = block_v or max(16, min(triton.next_power_of_2(axes["v"]), H200["delta_flush"]["block_v"]))
    _delta_flush_kernel[(triton.cdiv(axes["v"], block), axes["h"], rows)](
        S, slots, *ring.tensors,
        KeyStrides(*strides(S, 3)), ring.strides(), eps,
        K=axes["k"], V=axes["v"], HEADS_PER_KEY=axes["h"] // axes["g"], CHANNEL=ring.g.dim() == 4, L2_NORM=l2_norm,
        SPLIT=ring.k.dtype == torch.bfloat16, CAPACITY=ring.capacity,
        BLOCK_L=max(16, triton.next_power_of_2(ring.capacity)), BLOCK_K=max(16, triton.next_power_of_2(axes["k"])),
        BLOCK_V=block, num_warps=num_warps or H200["delta_flush"]["warps"],
    )  # fmt: skip


@triton.jit
def _delta_flush_kernel(
    S, slots, ring_u, ring_k, ring_g, origin, held, stride_S, stride_ring, eps,
    K: tl.constexpr, V: tl.constexpr, HEADS_PER_KEY: tl.constexpr, CHANNEL: tl.constexpr, L2_NORM: tl.constexpr,
    SPLIT: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    if slots is not None:
        slot = tl.load(slots + slot).to(tl.int64)
    if slot >= 0:
        i = tl.arange(0, BLOCK_K).to(tl.int64)
        j = tl.program_id(0).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
        in_k, in_v = i < K, j < V
        at_S = S + slot * stride_S.s + h * stride_S.h + i[:, None] * stride_S.k + j[None, :]
        state = tl.load(at_S, mask=in_k[:, None] & in_v[None, :], other=0.0).to(tl.float32)
        first = tl.load(origin + slot).to(tl.int32)
        count = tl.load(held + slot).to(tl.int32)
        k_l, u_l, g_l = load_history(
            ring_u + slot * stride_ring.u.s + h * stride_ring.u.h,
            ring_k + slot * stride_ring.k.s + (h // HEADS_PER_KEY) * stride_ring.k.g,
            ring_g + slot * stride_ring.g.s + h * stride_ring.g.h,
            first, count, stride_ring.u.l, stride_ring.k.l, stride_ring.g.l, i, j, in_k, in_v, CAPACITY, BLOCK_L, CHANNEL,
        )  # fmt: skip
        r_l, G_l = norms(k_l, 1.0, eps, L2_NORM), tl.cumsum(g_l, axis=0)
        state = state_after(state, k_l, r_l, G_l, last(G_l, count - 1), u_l.to(tl.float32), CHANNEL, SPLIT)
        tl.store(at_S, state.to(S.dtype.element_ty), mask=in_k[:, None] & in_v[None, :])
