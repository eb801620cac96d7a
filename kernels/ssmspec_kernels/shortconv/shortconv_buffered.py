"""The short convolution from a checkpoint and a ring: verification of a window, with the flush of the rows that are due.

    M_s = the last w columns of [S_0 | held entries | u_0 .. u_s],  u = B x                            (1)
    y_s = C_s (bias + sum_w weight_w M_s,w)                             0 after a row's real tokens       (2)
    ring: u of the window's tokens after the held ones                                                   (3)
    S_0' = the last w - 1 columns of [S_0 | held entries]               if held + 2T > L                 (4)

(4) adds committed tokens only, never the window, which may still be rejected. The cursors are updated with the accepted
tokens afterwards (`cursors.commit_window`), by the same rule. A program owns a tile of channels of one row. The state is as
small as w - 1 entries, so a ring saves no bytes here: it lets these layers share the cursors of the others in a hybrid. The
tiles are those of the convolution; they were not measured with gates.

Layout: S (s, d, w - 1), the ring in `shortconv_ring`; rows through `slots`, a negative slot is padding and is skipped.
Bound by the bytes of the inputs. Source: ReplaySSM, algorithm 8.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..conv.conv_taps import load_filters, store_columns, tile
from ..delta.ring.delta_ring import place
from ..launch import AS_WRITTEN, strides
from ..row import Axes, Lengths, Slots, launcher
from ..shared.cursors import check_window as check_ring
from ..shared.cursors import flushes, is_due
from ..shared.flush_order import row_at
from . import shortconv_columns as short
from .shortconv_columns import check_window, read_token
from .shortconv_ring import Ring, load_held


def traffic_bytes(
    held: Sequence[int], t: int, d: int, w: int, *, capacity: int, window: int, state: int = 4, io: int = 2, u: int = 4
) -> int:
    """Bytes that must cross the memory bus for live rows with `held` entries each and t real tokens; cursors are left out.

    Units: bytes; `state`, `io` and `u` are the bytes of an element; `u` is that of the ring.
    """
    kept = w - 1
    read = sum(min(n, kept) * u + max(kept - n, 0) * state for n in held)
    written = flushes(held, window=window, capacity=capacity) * kept * state
    return d * (read + written + len(held) * t * (4 * io + u))


@launcher
def shortconv_buffered(
    axes: Axes,
    S: short.State,
    ring: Ring,
    B: short.Inners,
    C: short.Inners,
    x: short.Inners,
    weight: short.Taps,
    *,
    window: int | None = None,
    bias: short.Bias | None = None,
    slots: Slots | None = None,
    lengths: Lengths | None = None,
    out: short.Outputs | None = None,
    block_d: int | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """Reads a window after the history of S[slots], stores it in the ring, flushes what is due: (1) to (4). Returns the
    outputs (b, t, d).

    `window` is the longest window (T of the rule; None: t). `lengths` (b) counts the real tokens of each row, which come
    first; the outputs after them are 0, and a row of length 0 is neither flushed nor extended. The cursors of `ring` are
    read, not updated: every layer of a model may share them. Only one row may use a slot.

    Raises: ShapeMismatch, PrecisionError, ParameterError, RingOverflow (capacity < 2 window), before anything is written.
    """
    check_window(axes, slots)
    b, t, d, w = (axes[a] for a in "btdw")
    window = t if window is None else window
    check_ring(ring.capacity, window, t)
    y = torch.empty_like(x) if out is None else out
    block, warps = tile(d, b)
    block, warps = block_d or block, num_warps or warps
    _shortconv_buffered_kernel[(triton.cdiv(d, block), b)](
        S, *ring.tensors, B, C, x, weight, bias, slots, lengths, y,
        *strides(S, 2), *strides(ring.u, 2), *strides(B, 2), *strides(C, 2), *strides(x, 2), *strides(weight, 2),
        *strides(y, 2), T=t, D=d, W=w, WINDOW=window, CAPACITY=ring.capacity, BLOCK_D=block,
        BLOCK_W=triton.next_power_of_2(w - 1), num_warps=warps, **AS_WRITTEN,
    )  # fmt: skip
    return y


@triton.jit
def _shortconv_buffered_kernel(
    S, ring_u, origin, held, B, C, x, weight, bias, slots, lengths, y,
    stride_S_s, stride_S_d, stride_u_s, stride_u_l, stride_B_b, stride_B_t, stride_C_b, stride_C_t, stride_x_b, stride_x_t,
    stride_weight_d, stride_weight_w, stride_y_b, stride_y_t,
    T: tl.constexpr, D: tl.constexpr, W: tl.constexpr, WINDOW: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_W: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    slot, length, first, count = row_at(b, slots, lengths, origin, held, T)
    if slot >= 0:
        d = tl.program_id(0).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)
        inside = d < D
        taps, shift = load_filters(weight, bias, d, inside, stride_weight_d, stride_weight_w, W)
        state, history = S + slot * stride_S_s, ring_u + slot * stride_u_s
        window = load_held(state, history, first, count, d, inside, stride_S_d, stride_u_l, W - 1, CAPACITY)
        if (length > 0) & is_due(count, WINDOW, CAPACITY):
            store_columns(state, window, d, inside, stride_S_d, W - 1, BLOCK_D, BLOCK_W)  # (4)
        B_at, C_at, x_at = B + b * stride_B_b + d, C + b * stride_C_b + d, x + b * stride_x_b + d
        for t in tl.static_range(T):
            at, real = tl.cast(t, tl.int64), t < length
            y_t, u_t, window = read_token(
                window, B_at + at * stride_B_t, C_at + at * stride_C_t, x_at + at * stride_x_t, real, inside, taps, shift, W,
                lengths is not None,
            )  # (1) (2)  # fmt: skip
            tl.store(y + b * stride_y_b + at * stride_y_t + d, y_t.to(y.dtype.element_ty), mask=inside)
            entry = history + place(first + count + t, CAPACITY) * stride_u_l + d
            tl.store(entry, u_t.to(ring_u.dtype.element_ty), mask=inside & real)  # (3)
