"""SSD (Mamba-2), one or several tokens in one launch.

    dt = clip(softplus(dt_raw + dt_bias), dt_limit)   (1)
    a  = exp(dt A)                                    (2)
    S' = a S + (dt x) B^T                             (3)
    y  = S' C + D x, then y silu(z) if z is given     (4)

A program owns a tile (p, n) of one head of one row, with all of n: it reads the tile of the state once, loops over the tokens
with the tile in registers, and writes it once, or not at all. A no-op token has dt = 0 and x = B = 0, so that (2) is 1 and
(3) is S: it may come anywhere. Everything is computed in fp32; the state is rounded to its storage type once, at the end.
(1) and (2) are computed for all tokens at once, one token per lane, because each costs as much as a row of the tile.

The tile is loaded as rows of RUN states, all p of one run of n before the next, so that lanes are spread over p and a run; it
is then used as (n / RUN, p, RUN), in which the sum of (4) begins within a lane. (Loaded in that shape, Triton 3.6 spreads
lanes over n / RUN, and half of the instructions are shuffles.)

Layout: S (s, h, p, n), a pool that rows index through `slots`; a row with a negative slot is padding and is skipped.
Bound by the bytes of the state: one read, and one write if it is kept. The state's loads are marked as first to be evicted,
which leaves cache for B, C and what other programs write. On devices with programmatic dependent launch, programs
start while the previous launch ends, and wait for it; if they are few, the next launch may start once the loads of
their states are issued.
"""

import torch
import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol
from torch import Tensor

from ..launch import overlapped, strides
from ..row import Axes, Live, Slots, launcher, moved
from ..shared.functions import silu
from ..shared.strides import StateStrides, TokenStrides
from ..shared.tuning import H200
from . import ssd_inputs as ssd
from .ssd_inputs import Inputs, skip_strides, step_size, window_strides


def traffic_bytes(
    b: int, t: int, h: int, p: int, n: int, g: int, *, state: int = 4, io: int = 2, write_state: bool = True, z: bool = False
) -> int:
    """Bytes that must cross the memory bus for b live rows: state, x, B, C, dt, y, and z; parameters are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    axes = {"s": b, "b": b, "t": t, "h": h, "p": p, "n": n, "g": g}
    return moved(ssd_scan, axes, {"state": state, "io": io}, without=() if z else ("z",), kept=write_state)


@launcher
def ssd_scan(
    axes: Axes,
    S: ssd.State,
    x: ssd.Heads,
    dt: ssd.PerHeads,
    A: ssd.Decay,
    B: ssd.Projs,
    C: ssd.Projs,
    *,
    D: ssd.Skip | None = None,
    z: ssd.Heads | None = None,
    dt_bias: ssd.PerHead | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Slots | None = None,
    live: Live | None = None,
    write_state: bool = True,
    out: ssd.Outputs | None = None,
    block_p: int | None = None,
    num_warps: int | None = None,
    run: int = 32,
    fused: bool = True,
) -> Tensor:
    """Advances the states S[slots] by a window of tokens, in place, and returns the outputs (b, t, h, p).

    `slots` (b) gives the state of each row (None: row b has slot b); several rows may share one if `write_state` is off.
    `live` (b, t) marks the real tokens; the output of a no-op is 0. The output of a padding row is not written. Unless
    `fused`, products of (4) are rounded before they are summed: the bits of a token do not depend on the number of tokens.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    given = Inputs(axes, S, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, slots)
    b, t, h, p, n, _ = given.sizes
    y = torch.empty_like(x) if out is None else out
    block, warps = tile(p, t, n, S.element_size())
    block, warps = block_p or block, num_warps or warps
    grid = triton.cdiv(p, block), h, b
    ssd_scan_kernel[grid](
        *given.tensors, live, None, None, y, None, None, window_strides(given, y), TokenStrides(*strides(live, 2)),
        TokenStrides(0, 0), StateStrides(0, 0, 0), TokenStrides(0, 0), skip_strides(given), *given.dt_limit, T=t, P=p, N=n,
        **given.constants,
        WRITE_STATE=write_state, BLOCK_T=triton.next_power_of_2(t), BLOCK_P=block, BLOCK_N=triton.next_power_of_2(n),
        RUN=min(run, triton.next_power_of_2(n)), num_warps=warps, enable_fp_fusion=fused,
        EARLY=t == 1 and grid[0] * h * b <= FEW, **overlapped(S.device),
    )  # fmt: skip
    return y


FEW = H200["ssd_scan"]["early_programs"]
"""Up to this number of programs, with one token, the next launch fits beside them."""


def tile(p: int, t: int, n: int, size: int) -> tuple[int, int]:
    """Channels and warps of a program; `size` is the bytes of a state.

    One token has a narrow tile only if its lanes hold 16 bytes each, as they do in the wide one: with fewer states a lane
    would hold fewer, and sum a channel in another order. The number of rows does not matter: another tile is another
    compilation, which may fuse another product of (4) into its sum, so that the bits of a row would depend on the batch.
    """
    narrow = t == 1 and 4 * triton.next_power_of_2(n) * size >= 32 * 16
    return min(triton.next_power_of_2(p), H200["ssd_scan"]["step_block_p" if narrow else "block_p"]), 1


@triton.jit
def ssd_scan_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, live, places, kept, y, weight, squares, stride: tl.constexpr, stride_live,
    stride_places, stride_kept, stride_squares, stride_D: tl.constexpr, low, high, T: tl.constexpr, P: tl.constexpr,
    N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, WRITE_STATE: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, RUN: tl.constexpr, OVERLAP: tl.constexpr,
    EARLY: tl.constexpr = False,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    # Loads that do not depend on the slot are issued before the slot has arrived.
    g = h // HEADS_PER_GROUP
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.arange(0, BLOCK_N // RUN)[:, None] * RUN + tl.arange(0, RUN)[None, :]
    in_p = (p < P) | (P % BLOCK_P == 0)
    in_n = (n < N) | (N == BLOCK_N)
    i = tl.arange(0, BLOCK_T)
    real, far = i < T, i.to(tl.int64)
    at_z, at_live, skip, scale = None, None, None, None
    if z is not None:
        at_z = z + b * stride.z.b + h * stride.z.h + p
    if live is not None:
        at_live = live + b * stride_live.b
        real = tl.load(at_live + far * stride_live.t, mask=real, other=0) != 0
    raw = tl.load(dt + b * stride.dt.b + h * stride.dt.h + far * stride.dt.t, mask=real, other=0.0)
    decay = tl.load(A + h)
    bias = 0.0
    if dt_bias is not None:
        bias = tl.load(dt_bias + h).to(tl.float32)
    if D is not None:
        skip = tl.load(D + h * stride_D.h + p * stride_D.p, mask=in_p, other=0.0).to(tl.float32)
    if weight is not None:
        scale = tl.load(weight + h * P + p, mask=in_p, other=0.0).to(tl.float32)
    at_x = x + b * stride.x.b + h * stride.x.h + p
    at_B = B + b * stride.B.b + g * stride.B.g + n
    window = at_live, at_x, at_B, C + b * stride.C.b + g * stride.C.g + n, at_z
    token = _token(window, 0, stride, stride_live, in_p, in_n)
    if slot >= 0:
        row_p, col, inside = state_rows(tl.program_id(0) * BLOCK_P, P, N, BLOCK_P, BLOCK_N, RUN)
        at_S = S + slot * stride.S.s + h * stride.S.h + (row_p.to(tl.int64) * stride.S.p)[:, None] + col
        state = tl.load(at_S, mask=inside, other=0.0, eviction_policy="evict_first")
        tl.debug_barrier()  # otherwise the loads of B and C would be issued before that of the tile
        if OVERLAP and EARLY:
            tl.extra.cuda.gdc_launch_dependents()
        at_y = y + b * stride.y.b + h * stride.y.h + p
        steps = step_size(raw, real, bias, low, high, SOFTPLUS, LIMIT)  # (1)
        state = _walk_tokens(
            state, window, token, steps, tl.exp(steps * decay), skip, scale, places, kept, at_y, squares, b, h, i, row_p, col,
            in_p, in_n, inside, stride, stride_live, stride_places, stride_kept, stride_squares, T, BLOCK_P, BLOCK_N, RUN,
        )  # (2)  # fmt: skip
        if WRITE_STATE:
            tl.store(at_S, state.to(S.dtype.element_ty), mask=inside, eviction_policy="evict_first")


@triton.jit
def _walk_tokens(
    state, window, token, steps, decays, skip, scale, places, kept, y, squares, b, h, i, row_p, col, in_p, in_n, inside,
    stride, stride_live, stride_places, stride_kept, stride_squares, T: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """The outputs of all tokens from a tile of the state; and the state after the last one, in its original row layout."""
    runs: tl.constexpr = BLOCK_N // RUN
    state = tl.reshape(state.to(tl.float32), (runs, BLOCK_P, RUN))
    for t in range(T):
        # The next token is loaded before the output of this one is stored: a load cannot pass a store.
        following = token
        if T > 1:
            following = _token(window, tl.minimum(t + 1, T - 1), stride, stride_live, in_p, in_n)
        x_t, B_t = token[0].to(tl.float32), token[1].to(tl.float32)
        C_t, z_t = token[2].to(tl.float32), token[3].to(tl.float32)
        step = element(steps, i, t)
        update = (step * x_t)[:, None][None, :, :] * B_t[:, None, :]
        state = tl.fma(state, element(decays, i, t), update)  # (3)
        y_t = tl.sum(tl.sum(state * C_t[:, None, :], axis=0), axis=1)  # (4)
        if skip is not None:
            y_t = tl.fma(skip, x_t, y_t)
        if window[4] is not None:
            y_t *= silu(z_t)
        if scale is not None:
            at_squares = squares + b * stride_squares.b + tl.cast(t, tl.int64) * stride_squares.t
            tile = h * tl.num_programs(0) + tl.program_id(0)
            tl.store(at_squares + tile, tl.sum(tl.where(in_p, y_t * y_t, 0.0), axis=0))
            y_t *= scale
        tl.store(y + tl.cast(t, tl.int64) * stride.y.t, y_t.to(y.dtype.element_ty), mask=in_p)
        if places is not None:
            place = tl.load(places + b * stride_places.b + tl.cast(t, tl.int64) * stride_places.t).to(tl.int64)
            if place >= 0:
                at_kept = kept + place * stride_kept.s + h * stride_kept.h
                at_kept += (row_p.to(tl.int64) * stride_kept.p)[:, None] + col
                tl.store(at_kept, tl.reshape(state, (runs * BLOCK_P, RUN)).to(kept.dtype.element_ty), mask=inside)
        token = following
    return tl.reshape(state, (runs * BLOCK_P, RUN))


@triton.jit
def _token(window, t, stride, stride_live, in_p, in_n):
    """x, B, C and z of token t of a window, as stored; zeros for a no-op."""
    live, x, B, C, z = window
    t = tl.cast(t, tl.int64)
    if live is not None:
        real = tl.load(live + t * stride_live.t) != 0
        in_p &= real
        in_n &= real
    x_t = tl.load(x + t * stride.x.t, mask=in_p, other=0.0)
    B_t = tl.load(B + t * stride.B.t, mask=in_n, other=0.0)
    C_t = tl.load(C + t * stride.C.t, mask=in_n, other=0.0)
    z_t = x_t
    if z is not None:
        z_t = tl.load(z + t * stride.z.t, mask=in_p, other=0.0)
    return x_t, B_t, C_t, z_t


@triton.jit
def state_rows(first, P: tl.constexpr, N: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, RUN: tl.constexpr):
    """The channel, from `first` on, and the columns n of each row of RUN states of a tile, and which of them exist."""
    row = tl.arange(0, BLOCK_N // RUN * BLOCK_P)
    p = first + row % BLOCK_P
    n = (row // BLOCK_P * RUN)[:, None] + tl.arange(0, RUN)[None, :]
    return p, n, ((p < P) | (P % BLOCK_P == 0))[:, None] & ((n < N) | (N == BLOCK_N))


@triton.jit
def element(values, i, t):
    """values[t]: a sum with zeros, which costs a few shuffles; otherwise every lane would compute it again."""
    return tl.sum(tl.where(i == t, values, 0.0), axis=0)
