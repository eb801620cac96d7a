"""Adds the history of a ring to its checkpoint on demand: before a state leaves the buffer, or to make room.

    checkpoint' = the four pieces after the held entries        as in `mamba3_buffered` (1)

Windows flush themselves; this is for all rows at once, between them. The cursors are reset afterwards, once for all layers
(`cursors.commit_flush`). A row that holds nothing is neither read nor written. Layout: S (s, h, e) and the ring, as in
`mamba3_buffered`. Bound by the bytes of the states.
"""

from collections.abc import Sequence
from typing import Annotated

import triton
import triton.language as tl

from ssmspec_ref.errors import ParameterError

from ..launch import AS_WRITTEN, check_pool, strides
from ..row import Axes, Only, Slots, launcher
from ..shared.flush_order import row_at
from . import mamba3_inputs as mamba3
from .mamba3_inputs import PoolStrides, check_sizes, load_state, store_pieces
from .mamba3_ring import Ring, replayed
from .mamba3_scan import warps


def traffic_bytes(held: Sequence[int], g: int, h: int, p: int, n: int, f: int, r: int, *, state: int = 4, io: int = 2) -> int:
    """Bytes that must cross the memory bus for live rows with `held` entries each; cursors are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    entry = (h * (p + 3) + f + r * g * n) * io
    return sum(held) * entry + sum(1 for n_held in held if n_held) * 2 * h * (p * n + f + r * n + p) * state


@launcher
def mamba3_flush(
    axes: Axes,
    S: mamba3.State,
    ring: Annotated[Ring, Only()],
    B_norm: mamba3.Norm,
    B_bias: mamba3.RankBias,
    dt_bias: mamba3.PerHead,
    rows: int,
    *,
    up: mamba3.Map | None = None,
    A_floor: float = 1e-4,
    eps: float = 1e-5,
    halves: bool = False,
    slots: Slots | None = None,
    num_warps: int | None = None,
) -> None:
    """Advances the checkpoints S[slots] of `rows` rows by all that their rings hold, in place. The parameters are those of
    `mamba3_scan`.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    check_sizes(axes, A_floor, eps)
    if rows < 1 or axes.get("b", rows) != rows:
        raise ParameterError(f"rows is {rows}; give the number of slots")
    check_pool(axes["s"], rows, slots)
    h, p, n = axes["h"], axes["p"], axes["n"]
    _mamba3_flush_kernel[(h, rows)](
        S, ring.tensors, B_norm, B_bias, dt_bias, up, slots, PoolStrides(*strides(S, 2)), ring.strides, A_floor, eps,
        P=p, N=n, F=axes["f"], R=axes["r"], HEADS=h // axes["g"], HALVES=halves, CAPACITY=ring.capacity,
        BLOCK_P=triton.next_power_of_2(p), BLOCK_J=triton.next_power_of_2(n // 2), num_warps=num_warps or warps(p, n),
        **AS_WRITTEN,
    )  # fmt: skip


@triton.jit
def _mamba3_flush_kernel(
    S, ring, B_norm, B_bias, dt_bias, up, slots, stride_S, stride_ring, floor, eps,
    P: tl.constexpr, N: tl.constexpr, F: tl.constexpr, R: tl.constexpr, HEADS: tl.constexpr, HALVES: tl.constexpr,
    CAPACITY: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(0).to(tl.int64)
    slot, _, first, count = row_at(tl.program_id(1).to(tl.int64), slots, None, ring.origin, ring.held, 1)
    if (slot >= 0) & (count > 0):
        i, j = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_J)
        at_S = S + slot * stride_S.s + h * stride_S.h
        at_up = None if up is None else up + h * R * P
        held = load_state(at_S, i, j, True, P, N, F, R, HALVES)
        held = replayed(
            held, ring, stride_ring, slot, h, first, count, B_norm, B_bias + h * R * N, dt_bias + h, at_up, i, j, floor, eps,
            P, N, F, R, HEADS, HALVES, CAPACITY,
        )  # fmt: skip
        store_pieces(at_S, held, i, j, P, N, F, R, HALVES)
