"""Selective scan (Mamba-1), one or several tokens in one launch.

    dt = softplus(dt_raw + dt_bias)                   one for each channel                    (1)
    S' = exp(dt A) S + dt x B^T                       A (d, n): one decay for each state      (2)
    y  = S' C + D x, then y silu(z) if z is given                                             (3)

A program owns a tile of channels of one row, with all of n: it reads the tile of the state once, loops over the tokens with
it in registers, and writes it once, or not at all. A no-op token has dt = 0 and x = B = 0, so that the state is unchanged: it
may be anywhere. Everything is computed in fp32; the state is rounded to its storage type once, at the end.

Layout: S (s, d, n), a pool that rows index through `slots`; a row with a negative slot is padding and is skipped.
Bound by the bytes of the state for a few tokens, by exp (one for each token and state) for many.
"""

from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import AS_WRITTEN, check_pool, strides
from ..row import FP32, Axes, Live, Slots, launcher, moved, reads, updates, weighs, writes
from ..shared.functions import silu, softplus
from ..shared.tuning import H200

UNROLLED = H200["selective_scan"]["unrolled"]


def traffic_bytes(
    b: int, t: int, d: int, n: int, *, state: int = 4, io: int = 2, write_state: bool = True, z: bool = False
) -> int:
    """Bytes that must cross the memory bus for b live rows: state, x, B, C, dt, y, and z; parameters are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    axes = {"s": b, "b": b, "t": t, "d": d, "n": n}
    return moved(selective_scan, axes, {"state": state, "io": io}, without=() if z else ("z",), kept=write_state)


@launcher
def selective_scan(
    axes: Axes,
    S: Annotated[Tensor, updates("s d n")],
    x: Annotated[Tensor, reads("b t d")],
    dt: Annotated[Tensor, reads("b t d")],
    A: Annotated[Tensor, weighs("d n", FP32)],
    B: Annotated[Tensor, reads("b t n")],
    C: Annotated[Tensor, reads("b t n")],
    *,
    D: Annotated[Tensor, weighs("d")] | None = None,
    z: Annotated[Tensor, reads("b t d")] | None = None,
    dt_bias: Annotated[Tensor, weighs("d")] | None = None,
    dt_softplus: bool = True,
    slots: Slots | None = None,
    live: Live | None = None,
    write_state: bool = True,
    out: Annotated[Tensor, writes("b t d")] | None = None,
    block_d: int | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """Advances the states S[slots] by a window of tokens, in place, and returns the outputs (b, t, d): equations (1) to (3).

    `slots` (b) gives the state of each row (None: row b has slot b); several rows may share one if `write_state` is off.
    `live` (b, t) marks the real tokens; a no-op's input is not read, and its output is 0. The output of a padding row is
    not written.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    b, t, d, n = (axes[k] for k in "btdn")
    check_pool(axes["s"], b, slots)
    y = torch.empty_like(x) if out is None else out
    block, warps = _tile(d, n, t)
    block, warps = block_d or block, num_warps or warps
    _selective_scan_kernel[(triton.cdiv(d, block), b)](
        S, x, dt, A, B, C, D, z, dt_bias, slots, live, y,
        *strides(S, 2), *strides(x, 2), *strides(dt, 2), *strides(A, 2), *strides(B, 2), *strides(C, 2), *strides(z, 2),
        *strides(live, 2), *strides(y, 2), t, UNROLL=t if t <= UNROLLED else 0, DIM=d, N=n, SOFTPLUS=dt_softplus,
        WRITE_STATE=write_state, BLOCK_D=block, BLOCK_N=triton.next_power_of_2(n), num_warps=warps,
        **AS_WRITTEN,
    )  # fmt: skip
    return y


def _tile(d: int, n: int, t: int) -> tuple[int, int]:
    """Channels and warps of a program: 16 states a lane; several tokens use one warp only.

    One token has two warps only if each holds its own channels. Warps that share the states of a channel, or
    lanes with fewer states, would sum them in another order than in a window.
    """
    wide = triton.next_power_of_2(n)
    channels = triton.next_power_of_2(d)
    row = H200["selective_scan"]
    warps = 2 if t == 1 and wide <= row["two_warps_states"] and channels * wide >= row["two_warps_from"] else 1
    return min(channels, max(1, row["states_a_warp"] * warps // wide)), warps


@triton.jit
def _selective_scan_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, live, y,
    stride_S_s, stride_S_d, stride_x_b, stride_x_t, stride_dt_b, stride_dt_t, stride_A_d, stride_A_n, stride_B_b, stride_B_t,
    stride_C_b, stride_C_t, stride_z_b, stride_z_t, stride_live_b, stride_live_t, stride_y_b, stride_y_t, tokens,
    UNROLL: tl.constexpr, DIM: tl.constexpr, N: tl.constexpr, SOFTPLUS: tl.constexpr, WRITE_STATE: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        d = tl.program_id(0).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)
        n = tl.arange(0, BLOCK_N)
        inside = (d < DIM)[:, None] & (n < N)[None, :]
        tile = S + slot * stride_S_s + d[:, None] * stride_S_d + n[None, :]
        state = tl.load(tile, mask=inside, other=0.0).to(tl.float32)
        log_decay = tl.load(A + d[:, None] * stride_A_d + n[None, :] * stride_A_n, mask=inside, other=0.0)
        bias = tl.zeros_like(d).to(tl.float32)
        if dt_bias is not None:
            bias = tl.load(dt_bias + d, mask=d < DIM, other=0.0).to(tl.float32)
        skip = tl.zeros_like(bias)
        if D is not None:
            skip = tl.load(D + d, mask=d < DIM, other=0.0).to(tl.float32)
        x_at, dt_at, y_at = x + b * stride_x_b + d, dt + b * stride_dt_b + d, y + b * stride_y_b + d
        B_at, C_at = B + b * stride_B_b + n, C + b * stride_C_b + n
        z_at = None if z is None else z + b * stride_z_b + d
        live_at = None if live is None else live + b * stride_live_b
        if UNROLL > 0:
            for t in tl.static_range(UNROLL):
                state = _token(
                    state, t, x_at, dt_at, B_at, C_at, z_at, live_at, y_at, stride_x_t, stride_dt_t, stride_B_t, stride_C_t,
                    stride_z_t, stride_live_t, stride_y_t, log_decay, bias, skip, d < DIM, n < N, D is not None, SOFTPLUS,
                )  # fmt: skip
        else:
            for t in range(tokens):
                state = _token(
                    state, t, x_at, dt_at, B_at, C_at, z_at, live_at, y_at, stride_x_t, stride_dt_t, stride_B_t, stride_C_t,
                    stride_z_t, stride_live_t, stride_y_t, log_decay, bias, skip, d < DIM, n < N, D is not None, SOFTPLUS,
                )  # fmt: skip
        if WRITE_STATE:
            tl.store(tile, state.to(S.dtype.element_ty), mask=inside)


@triton.jit
def _token(
    state, t, x, dt, B, C, z, live, y, stride_x_t, stride_dt_t, stride_B_t, stride_C_t, stride_z_t, stride_live_t, stride_y_t,
    log_decay, bias, skip, channels, states, SKIP: tl.constexpr, SOFTPLUS: tl.constexpr,
):  # fmt: skip
    """The state after token t, whose output is stored."""
    t = tl.cast(t, tl.int64)
    real = True
    if live is not None:
        real = tl.load(live + t * stride_live_t) != 0
    step = tl.load(dt + t * stride_dt_t, mask=channels & real, other=0.0).to(tl.float32) + bias
    if SOFTPLUS:
        step = softplus(step)
    step = tl.where(real, step, 0.0)  # (1)
    x_t = tl.load(x + t * stride_x_t, mask=channels & real, other=0.0).to(tl.float32)
    B_t = tl.load(B + t * stride_B_t, mask=states & real, other=0.0).to(tl.float32)
    C_t = tl.load(C + t * stride_C_t, mask=states & real, other=0.0).to(tl.float32)
    state = state * tl.exp(step[:, None] * log_decay) + (step * x_t)[:, None] * B_t[None, :]  # (2)
    y_t = tl.sum(state * C_t[None, :], axis=1)
    if SKIP:
        y_t += skip * x_t
    if z is not None:
        y_t *= silu(tl.load(z + t * stride_z_t, mask=channels & real, other=0.0).to(tl.float32))
    tl.store(y + t * stride_y_t, tl.where(real, y_t, 0.0).to(y.dtype.element_ty), mask=channels)  # (3)
    return state
