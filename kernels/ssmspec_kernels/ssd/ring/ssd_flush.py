"""Adds the history of an SSD ring to its checkpoint on demand: before a state leaves the buffer, or to make room.

    S_0' = exp(G_h) S_0 + sum_{j held} exp(G_h - G_j) dt_j x_j B_j^T        as in `ssd_buffered` (3)

Windows and single tokens flush themselves; this is for all rows at once, between them. The cursors are reset afterwards,
once for all layers (`cursors.commit_flush`). Layout: S_0 (s, h, p, n), the ring as in `ssd_ring`.
Bound by the bytes of the state: one read, one write.
"""

from collections.abc import Sequence
from typing import Annotated

import triton
import triton.language as tl

from ssmspec_ref.errors import ParameterError

from ...launch import check_pool, divides, strides
from ...row import Axes, Only, Slots, launcher
from ...shared.tuning import H200
from ..ssd_inputs import Decay, State, load_rows
from .ssd_ring import Ring, entry_bytes, fold, place


def traffic_bytes(held: Sequence[int], h: int, p: int, n: int, g: int, *, state: int = 4, io: int = 2) -> int:
    """Bytes that must cross the memory bus for live rows with `held` entries each; cursors are left out."""
    return 2 * len(held) * h * p * n * state + sum(held) * entry_bytes(h, p, n, g, io=io)


@launcher
def ssd_flush(
    axes: Axes,
    S: State,
    ring: Annotated[Ring, Only()],
    A: Decay,
    rows: int,
    *,
    slots: Slots | None = None,
    block_p: int | None = None,
    num_warps: int | None = None,
) -> None:
    """Advances the checkpoints S[slots] of `rows` rows by all that their rings hold, in place.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    h, p, n = (axes[k] for k in "hpn")
    divides(axes["g"], h)
    if rows < 1 or axes.get("b", rows) != rows:
        raise ParameterError(f"rows is {rows}; give the number of slots, at least 1")
    check_pool(axes["s"], rows, slots)
    ring.check_types(ring.x, ring.B, ring.B)
    block = block_p or H200["ssd_flush"]["block_p"]
    _ssd_flush_kernel[(triton.cdiv(p, block), h, rows)](
        S, A, slots, ring.x, ring.dt, ring.B, ring.origin, ring.held,
        *strides(S, 3), *strides(ring.x, 3), *strides(ring.dt, 3), *strides(ring.B, 3),
        P=p, N=n, HEADS_PER_GROUP=h // axes["g"], CAPACITY=ring.capacity,
        BLOCK_L=max(16, triton.next_power_of_2(ring.capacity)), BLOCK_N=max(16, triton.next_power_of_2(n)),
        BLOCK_P=block, num_warps=num_warps or H200["ssd_flush"]["warps"],
    )  # fmt: skip


@triton.jit
def _ssd_flush_kernel(
    S, A, slots, ring_x, ring_dt, ring_B, origin, held, stride_S_s: tl.constexpr, stride_S_h: tl.constexpr,
    stride_S_p: tl.constexpr, stride_ring_x_s: tl.constexpr, stride_ring_x_l: tl.constexpr, stride_ring_x_h: tl.constexpr,
    stride_ring_dt_s: tl.constexpr, stride_ring_dt_l: tl.constexpr, stride_ring_dt_h: tl.constexpr,
    stride_ring_B_s: tl.constexpr, stride_ring_B_l: tl.constexpr, stride_ring_B_g: tl.constexpr, P: tl.constexpr,
    N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    if slots is not None:
        slot = tl.load(slots + slot).to(tl.int64)
    if slot >= 0:
        l, n = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_N)
        p = tl.program_id(0).to(tl.int64) * BLOCK_P + tl.arange(0, BLOCK_P)
        in_p, in_n = p < P, n < N
        first, count = tl.load(origin + slot).to(tl.int32), tl.load(held + slot).to(tl.int32)
        past, at = l < count, place(first + l, CAPACITY)
        at_dt = ring_dt + slot * stride_ring_dt_s + h * stride_ring_dt_h
        ld = tl.load(at_dt + at * stride_ring_dt_l, mask=past, other=0.0) * tl.load(A + h)
        at_x = ring_x + slot * stride_ring_x_s + h * stride_ring_x_h
        at_B = ring_B + slot * stride_ring_B_s + (h // HEADS_PER_GROUP) * stride_ring_B_g
        at_S = S + slot * stride_S_s + h * stride_S_h
        state = load_rows(at_S, p * stride_S_p, n, in_p, in_n).to(tl.float32)
        state = fold(
            state, tl.sum(ld, axis=0), tl.load(A + h), at_x, at_dt, at_B, stride_ring_x_l, stride_ring_dt_l, stride_ring_B_l,
            first, count, p, n, in_p, in_n, CAPACITY,
        )  # fmt: skip
        at_tile = at_S + p[:, None] * stride_S_p + n[None, :]
        tl.store(at_tile, state.to(S.dtype.element_ty), mask=in_p[:, None] & in_n[None, :])
