"""SSD (Mamba-2), one or several tokens in one launch.

    dt = clip(softplus(dt_raw + dt_bias), dt_limit)   (1)
    a  = exp(dt A)                                    (2)
    S' = a S + (dt x) B^T                             (3)
    y  = S' C + D x, then y silu(z) where z is given  (4)

A program owns a tile (p, n) of one head of one row, with all of n: it reads the tile of the state once, walks the tokens
with the tile in registers, and writes it once, or not at all. A no-op token has dt = 0 and x = B = 0, so that (2) is 1 and
(3) is S: it may stand anywhere. Everything is computed in fp32; the state is rounded to its storage type once, at the end.
(1) and (2) of all tokens are computed at once, one token a lane, for they cost as much as a row of the tile.

The tile is loaded as rows of RUN states, all p of one run of n before the next, so that lanes spread over p and a run; its
other shape is (n / RUN, p, RUN), in which the sum of (4) begins within a lane. (Loaded in that shape, Triton 3.6 spreads
lanes over n / RUN, and half of the instructions are shuffles.)

Layout: S (s, h, p, n), a pool that rows reach through `slots`; a row with a negative slot is padding and touches nothing.
Bound by the bytes of the state: one read, and one write where it is kept. The state is marked to leave the caches first,
which leaves room for B, C and others' writes. A token is 332 instructions for 64 states a lane, 200 of them the products of
(3) and (4). Where the device can, programs are placed while the launch before them ends, and wait for it; where they are
few, the next launch may be placed once their states are asked for. Beyond, that took 1.2 times as long.
"""

import torch
import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol
from torch import Tensor

from .functions import silu
from .launch import overlapped, strides
from .ssd_inputs import check_inputs, step_size


def traffic_bytes(
    b: int, t: int, h: int, p: int, n: int, g: int, *, state: int = 4, io: int = 2, write_state: bool = True, z: bool = False
) -> int:
    """Bytes that must cross the memory bus for b live rows: state, x, B, C, dt, y, and z; parameters are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    states = b * h * p * n * state * (2 if write_state else 1)
    return states + io * b * t * (h * p * (3 if z else 2) + 2 * g * n + h)


def ssd_scan(
    S: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Tensor | None = None,
    live: Tensor | None = None,
    write_state: bool = True,
    out: Tensor | None = None,
    block_p: int | None = None,
    num_warps: int | None = None,
    run: int = 32,
    fused: bool = True,
) -> Tensor:
    """Advance the states S[slots] by a window of tokens, in place, and return the outputs (b, t, h, p).

    `slots` (b) names the state of each row (None: row b has slot b); several rows may share one if `write_state` is off.
    `live` (b, t) marks the real tokens; the output of a no-op is 0. The output of a padding row is not written. Unless
    `fused`, products of (4) are rounded before they are summed: the bits of a token do not depend on how many came with it.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    more = [("live", live, "b t", (torch.bool,))]
    given = check_inputs(S, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, slots, out, *more)
    b, t, h, p, n, _ = given.sizes
    y = torch.empty_like(x) if out is None else out
    block, warps = tile(p, t, n, S.element_size())
    block, warps = block_p or block, num_warps or warps
    grid = triton.cdiv(p, block), h, b
    ssd_scan_kernel[grid](
        *given.tensors, live, None, None, y, None, None, *given.strides(y), *strides(live, 2), *strides(None, 2),
        *strides(None, 3), *strides(None, 2), *given.scalars, T=t, P=p, N=n, **given.constants,
        WRITE_STATE=write_state, BLOCK_T=triton.next_power_of_2(t), BLOCK_P=block, BLOCK_N=triton.next_power_of_2(n),
        RUN=min(run, triton.next_power_of_2(n)), num_warps=warps, enable_fp_fusion=fused,
        EARLY=t == 1 and grid[0] * h * b <= FEW, **overlapped(S.device),
    )  # fmt: skip
    return y


FEW = 32 * 132
"""Programs so few, of one token, that the launch behind them finds room beside them."""


def tile(p: int, t: int, n: int, size: int) -> tuple[int, int]:
    """Channels and warps of a program, as measured on an H200 for t of 1, 5 and 10; `size` is the bytes of a state.

    One token has a narrow tile only where its lanes hold 16 bytes each, as they do in the wide one: over fewer states a lane
    would hold fewer, and sum a channel in another order. The number of rows has no say: another tile is another compilation,
    which may fuse another product of (4) into its sum, so that the bits of a row would depend on the batch.
    """
    narrow = t == 1 and 4 * triton.next_power_of_2(n) * size >= 32 * 16
    return min(triton.next_power_of_2(p), 4 if narrow else 16), 1


@triton.jit
def ssd_scan_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, live, places, kept, y, weight, squares, stride_S_s: tl.constexpr,
    stride_S_h: tl.constexpr, stride_S_p: tl.constexpr, stride_x_b: tl.constexpr, stride_x_t: tl.constexpr,
    stride_x_h: tl.constexpr, stride_dt_b: tl.constexpr, stride_dt_t: tl.constexpr, stride_dt_h: tl.constexpr,
    stride_B_b: tl.constexpr, stride_B_t: tl.constexpr, stride_B_g: tl.constexpr, stride_C_b: tl.constexpr,
    stride_C_t: tl.constexpr, stride_C_g: tl.constexpr, stride_z_b: tl.constexpr, stride_z_t: tl.constexpr,
    stride_z_h: tl.constexpr, stride_y_b: tl.constexpr, stride_y_t: tl.constexpr, stride_y_h: tl.constexpr, stride_live_b,
    stride_live_t, stride_places_b, stride_places_t, stride_kept_s, stride_kept_h, stride_kept_p, stride_squares_b,
    stride_squares_t, stride_D_h: tl.constexpr, stride_D_p: tl.constexpr, low, high, T: tl.constexpr, P: tl.constexpr,
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
    # What does not depend on the slot is on its way before the slot is there.
    g = h // HEADS_PER_GROUP
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.arange(0, BLOCK_N // RUN)[:, None] * RUN + tl.arange(0, RUN)[None, :]
    in_p = (p < P) | (P % BLOCK_P == 0)
    in_n = (n < N) | (N == BLOCK_N)
    i = tl.arange(0, BLOCK_T)
    real, far = i < T, i.to(tl.int64)
    at_z, at_live = None, None
    if z is not None:
        at_z = z + b * stride_z_b + h * stride_z_h + p
    if live is not None:
        at_live = live + b * stride_live_b
        real = tl.load(at_live + far * stride_live_t, mask=real, other=0) != 0
    raw = tl.load(dt + b * stride_dt_b + h * stride_dt_h + far * stride_dt_t, mask=real, other=0.0)
    decay = tl.load(A + h)
    bias = 0.0
    if dt_bias is not None:
        bias = tl.load(dt_bias + h).to(tl.float32)
    if D is not None:
        skip = tl.load(D + h * stride_D_h + p * stride_D_p, mask=in_p, other=0.0).to(tl.float32)
    if weight is not None:
        scale = tl.load(weight + h * P + p, mask=in_p, other=0.0).to(tl.float32)
    at_x = x + b * stride_x_b + h * stride_x_h + p
    at_B = B + b * stride_B_b + g * stride_B_g + n
    at_C = C + b * stride_C_b + g * stride_C_g + n
    x_t, B_t, C_t, z_t = _token(
        at_live, at_x, at_B, at_C, at_z, 0, stride_live_t, stride_x_t, stride_B_t, stride_C_t, stride_z_t, in_p, in_n
    )
    if slot >= 0:
        runs: tl.constexpr = BLOCK_N // RUN
        row = tl.arange(0, runs * BLOCK_P)
        row_p = tl.program_id(0) * BLOCK_P + row % BLOCK_P
        col = (row // BLOCK_P * RUN)[:, None] + tl.arange(0, RUN)[None, :]
        inside = ((row_p < P) | (P % BLOCK_P == 0))[:, None] & ((col < N) | (N == BLOCK_N))
        at_S = S + slot * stride_S_s + h * stride_S_h + (row_p.to(tl.int64) * stride_S_p)[:, None] + col
        state = tl.load(at_S, mask=inside, other=0.0, eviction_policy="evict_first")
        tl.debug_barrier()  # or the tile would be asked for behind B and C
        if OVERLAP and EARLY:
            tl.extra.cuda.gdc_launch_dependents()
        state = tl.reshape(state.to(tl.float32), (runs, BLOCK_P, RUN))
        at_y = y + b * stride_y_b + h * stride_y_h + p
        steps = step_size(raw, real, bias, low, high, SOFTPLUS, LIMIT)  # (1)
        decays = tl.exp(steps * decay)  # (2)
        for t in range(T):
            # The next token is loaded before the output of this one is stored: a load does not pass a store.
            x_next, B_next, C_next, z_next = x_t, B_t, C_t, z_t
            if T > 1:
                x_next, B_next, C_next, z_next = _token(
                    at_live, at_x, at_B, at_C, at_z, tl.minimum(t + 1, T - 1), stride_live_t, stride_x_t, stride_B_t,
                    stride_C_t, stride_z_t, in_p, in_n,
                )  # fmt: skip
            x_t, B_t, C_t, z_t = x_t.to(tl.float32), B_t.to(tl.float32), C_t.to(tl.float32), z_t.to(tl.float32)
            step = element(steps, i, t)
            update = (step * x_t)[:, None][None, :, :] * B_t[:, None, :]
            state = tl.fma(state, element(decays, i, t), update)  # (3)
            y_t = tl.sum(tl.sum(state * C_t[:, None, :], axis=0), axis=1)  # (4)
            if D is not None:
                y_t = tl.fma(skip, x_t, y_t)
            if z is not None:
                y_t *= silu(z_t)
            if weight is not None:
                at_squares = squares + b * stride_squares_b + tl.cast(t, tl.int64) * stride_squares_t
                tile = h * tl.num_programs(0) + tl.program_id(0)
                tl.store(at_squares + tile, tl.sum(tl.where(in_p, y_t * y_t, 0.0), axis=0))
                y_t *= scale
            tl.store(at_y + tl.cast(t, tl.int64) * stride_y_t, y_t.to(y.dtype.element_ty), mask=in_p)
            if places is not None:
                place = tl.load(places + b * stride_places_b + tl.cast(t, tl.int64) * stride_places_t).to(tl.int64)
                if place >= 0:
                    at_kept = kept + place * stride_kept_s + h * stride_kept_h
                    at_kept += (row_p.to(tl.int64) * stride_kept_p)[:, None] + col
                    tl.store(at_kept, tl.reshape(state, (runs * BLOCK_P, RUN)).to(kept.dtype.element_ty), mask=inside)
            x_t, B_t, C_t, z_t = x_next, B_next, C_next, z_next
        if WRITE_STATE:
            state = tl.reshape(state, (runs * BLOCK_P, RUN))
            tl.store(at_S, state.to(S.dtype.element_ty), mask=inside, eviction_policy="evict_first")


@triton.jit
def _token(live, x, B, C, z, t, stride_live, stride_x, stride_B, stride_C, stride_z, in_p, in_n):
    """What token t brings; zeros for a no-op."""
    t = tl.cast(t, tl.int64)
    if live is not None:
        real = tl.load(live + t * stride_live) != 0
        in_p &= real
        in_n &= real
    x_t = tl.load(x + t * stride_x, mask=in_p, other=0.0)
    B_t = tl.load(B + t * stride_B, mask=in_n, other=0.0)
    C_t = tl.load(C + t * stride_C, mask=in_n, other=0.0)
    z_t = x_t
    if z is not None:
        z_t = tl.load(z + t * stride_z, mask=in_p, other=0.0)
    return x_t, B_t, C_t, z_t


@triton.jit
def element(values, i, t):
    """values[t]: a sum with zeros, which costs a few shuffles, where every lane would compute it again."""
    return tl.sum(tl.where(i == t, values, 0.0), axis=0)
