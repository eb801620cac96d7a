"""Adds the history of a ring to its checkpoint on demand: before a state leaves the buffer, or to make room.

    S_0' = the last w - 1 columns of [S_0 | held entries]        as in `shortconv_buffered` (4)

Windows flush themselves; this is for all rows at once, between them. The cursors are reset afterwards, once for all layers
(`cursors.commit_flush`). A row that holds nothing is neither read nor written. Layout: S (s, d, w - 1) and the ring, as in
`shortconv_buffered`. Bound by the bytes of the columns.
"""

from collections.abc import Sequence
from typing import Annotated

import triton
import triton.language as tl

from ssmspec_ref.errors import ParameterError

from ..conv.conv_taps import check_width, store_columns, tile
from ..launch import check_pool, strides
from ..row import Axes, Only, Slots, launcher
from ..shared.flush_order import row_at
from .shortconv_columns import State
from .shortconv_ring import Ring, load_held


def traffic_bytes(held: Sequence[int], d: int, w: int, *, state: int = 4, u: int = 4) -> int:
    """Bytes that must cross the memory bus for live rows with `held` entries each; cursors are left out.

    Units: bytes; `state` and `u` are the bytes of an element.
    """
    kept = w - 1
    return d * sum(min(n, kept) * u + (max(kept - n, 0) + kept) * state for n in held if n)


@launcher
def shortconv_flush(
    axes: Axes,
    S: State,
    ring: Annotated[Ring, Only()],
    rows: int,
    *,
    slots: Slots | None = None,
    block_d: int | None = None,
    num_warps: int | None = None,
) -> None:
    """Advances the checkpoints S[slots] of `rows` rows by all that their rings hold, in place.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    d, kept = axes["d"], axes["q"]
    check_width(kept + 1)
    if rows < 1 or axes.get("b", rows) != rows:
        raise ParameterError(f"rows is {rows}; give the number of slots")
    check_pool(axes["s"], rows, slots)
    block, warps = tile(d, rows)
    block, warps = block_d or block, num_warps or warps
    _shortconv_flush_kernel[(triton.cdiv(d, block), rows)](
        S, *ring.tensors, slots, *strides(S, 2), *strides(ring.u, 2),
        D=d, KEPT=kept, CAPACITY=ring.capacity, BLOCK_D=block, BLOCK_W=triton.next_power_of_2(kept), num_warps=warps,
    )  # fmt: skip


@triton.jit
def _shortconv_flush_kernel(
    S, ring_u, origin, held, slots, stride_S_s, stride_S_d, stride_u_s, stride_u_l,
    D: tl.constexpr, KEPT: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    slot, _, first, count = row_at(tl.program_id(1).to(tl.int64), slots, None, origin, held, 1)
    if (slot >= 0) & (count > 0):
        d = tl.program_id(0).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)
        inside = d < D
        state, history = S + slot * stride_S_s, ring_u + slot * stride_u_s
        window = load_held(state, history, first, count, d, inside, stride_S_d, stride_u_l, KEPT, CAPACITY)
        store_columns(state, window, d, inside, stride_S_d, KEPT, BLOCK_D, BLOCK_W)
