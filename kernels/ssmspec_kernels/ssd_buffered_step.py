"""SSD (Mamba-2) from a checkpoint and a ring: standard decode, one token for each row, by two routes.

With S_0 the checkpoint, j the tokens held since it, t the new one, and G the sum of dt A from the checkpoint on,

    output only:       y = exp(G_t) S_0 C + sum_{j held} exp(G_t - G_j) dt_j (C . B_j) x_j + dt_t (C . B_t) x_t     (1)
    state and output:  S_t = exp(G_t) S_0 + sum_j exp(G_t - G_j) dt_j x_j B_j^T + dt_t x_t B_t^T,   y = S_t C       (2)
    then y + D x, and y silu(z) where z is given                                                                    (3)
    ring: x, dt, B of the token behind the held ones, unless it is the L-th                                         (4)
    S_0' = S_t of (2) where held + 1 = L                                                                            (5)

The token is accepted already, so the L-th goes into the checkpoint with the others. The cursors are moved afterwards, once
for all layers (`cursors.commit_step`).

A program owns PROGRAM_P channels of one head of one row and walks them in tiles (p, n). S_0 is read once, and written once in
L tokens, in its own type; nothing is rounded to less than fp32. (1) forms no state and multiplies each element of the
checkpoint once. Bound by the bytes of the state and of the ring's live entries.
Source: ReplaySSM, algorithms 2 and 6.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from .dots import dot_left
from .functions import silu
from .launch import INDICES, d_strides, strides
from .ssd_inputs import check_inputs, load_rows, step_size, window_tile
from .ssd_ring import Ring, entry_bytes, place
from .ssd_scan import traffic_bytes as scan_bytes


def traffic_bytes(
    held: Sequence[int], h: int, p: int, n: int, g: int, *, capacity: int, state: int = 4, io: int = 2, z: bool = False
) -> int:
    """Bytes that must cross the memory bus for live rows with `held` entries each; cursors are left out.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    flushes = sum(1 for count in held if count + 1 == capacity)
    entries = sum(held) + len(held) - flushes
    scan = scan_bytes(len(held), 1, h, p, n, g, state=state, io=io, write_state=False, z=z)
    return scan + flushes * h * p * n * state + entries * entry_bytes(h, p, n, g, io=io)


def ssd_buffered_step(
    S: Tensor,
    ring: Ring,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    output_only: bool = True,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Tensor | None = None,
    lengths: Tensor | None = None,
    out: Tensor | None = None,
    block_p: int | None = None,
    program_p: int | None = None,
    num_warps: int | None = None,
    stages: int | None = None,
) -> Tensor:
    """Decode one token (b, 1, ..) behind the history of S[slots], and hold it; outputs (b, 1, h, p): (1) or (2), then (3).

    `lengths` (b) is 0 for a row without a token: its output is 0 and nothing of it changes. The cursors of `ring` are read,
    not moved. A slot may be named by one row only.

    Raises: ShapeMismatch, PrecisionError, ParameterError (a window of more than one token), before anything is written.
    """
    more = [("lengths", lengths, "b", INDICES), *ring.arguments()]
    axes = check_inputs(S, x, dt, A, B, C, D, z, dt_bias, dt_limit, slots, out, *more)
    b, t, h, p, n, g = (axes[k] for k in "bthpng")
    ring.check_types(x, B, C)
    if t != 1:
        raise ParameterError(f"the window holds {t} tokens; standard decode takes one, ssd_buffered several")
    y = x.new_empty(x.shape) if out is None else out
    given = block_p, program_p, num_warps, stages
    block, program, warps, depth = (mine or own for mine, own in zip(given, window_tile(p, b * h, 16), strict=True))
    each = triton.cdiv(program, block)
    _ssd_buffered_step_kernel[(triton.cdiv(p, each * block), h, b)](
        S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, ring.x, ring.dt, ring.B, ring.origin, ring.held, y,
        *strides(S, 3), *(a.stride(axis) for a in (x, dt, B, C) for axis in (0, 2)), *strides(z, 3)[::2],
        *strides(y, 3)[::2], *strides(ring.x, 3), *strides(ring.dt, 3), *strides(ring.B, 3), *d_strides(D), *dt_limit,
        P=p, N=n, HEADS_PER_GROUP=h // g, SOFTPLUS=dt_softplus, LIMIT=dt_limit != (0.0, float("inf")),
        OUTPUT_ONLY=output_only, CAPACITY=ring.capacity, BLOCK_L=max(16, triton.next_power_of_2(ring.capacity - 1)),
        BLOCK_N=max(16, triton.next_power_of_2(n)), BLOCK_P=block, TILES=each, STAGES=depth, num_warps=warps,
    )  # fmt: skip
    return y


@triton.jit
def _ssd_buffered_step_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, ring_x, ring_dt, ring_B, origin, held, y,
    stride_S_s, stride_S_h, stride_S_p, stride_x_b, stride_x_h, stride_dt_b, stride_dt_h, stride_B_b, stride_B_g,
    stride_C_b, stride_C_g, stride_z_b, stride_z_h, stride_y_b, stride_y_h,
    stride_ring_x_s, stride_ring_x_l, stride_ring_x_h, stride_ring_dt_s, stride_ring_dt_l, stride_ring_dt_h,
    stride_ring_B_s, stride_ring_B_l, stride_ring_B_g, stride_D_h, stride_D_p, low, high,
    P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr,
    OUTPUT_ONLY: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_P: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        g = h // HEADS_PER_GROUP
        l, n = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_N)
        in_n = n < N
        real = True
        if lengths is not None:
            real = tl.load(lengths + b) > 0
        first = tl.load(origin + slot).to(tl.int32)
        count = tl.load(held + slot).to(tl.int32)
        past = l < count
        at_past, at_new = place(first + l, CAPACITY), place(first + count, CAPACITY)
        full = (count + 1 == CAPACITY) & real
        new = (count + 1 < CAPACITY) & real
        decay = tl.load(A + h)
        bias = 0.0
        if dt_bias is not None:
            bias = tl.load(dt_bias + h).to(tl.float32)
        at_dt = ring_dt + slot * stride_ring_dt_s + h * stride_ring_dt_h
        at_B = ring_B + slot * stride_ring_B_s + g * stride_ring_B_g
        step_l = tl.load(at_dt + at_past * stride_ring_dt_l, mask=past, other=0.0)
        step = step_size(tl.load(dt + b * stride_dt_b + h * stride_dt_h), real, bias, low, high, SOFTPLUS, LIMIT)
        B_l = load_rows(at_B, at_past * stride_ring_B_l, n, past, in_n)
        B_t = tl.load(B + b * stride_B_b + g * stride_B_g + n, mask=in_n & real, other=0.0)
        C_t = tl.load(C + b * stride_C_b + g * stride_C_g + n, mask=in_n & real, other=0.0).to(tl.float32)
        G_l, G = tl.cumsum(step_l * decay, axis=0), tl.sum(step_l * decay, axis=0) + step * decay
        weight_l = tl.exp(G - G_l) * step_l
        if OUTPUT_ONLY:
            read_l = weight_l * tl.sum(B_l.to(tl.float32) * C_t[None, :], axis=1)
            read_t = step * tl.sum(B_t.to(tl.float32) * C_t, axis=0)
        owns = new & (tl.program_id(0) == 0)
        tl.store(at_dt + at_new * stride_ring_dt_l, step, mask=owns)
        tl.store(at_B + at_new * stride_ring_B_l + n, B_t, mask=in_n & owns & (h % HEADS_PER_GROUP == 0))  # (4)
        at_S = S + slot * stride_S_s + h * stride_S_h
        at_ring = ring_x + slot * stride_ring_x_s + h * stride_ring_x_h
        for tile in tl.range(0, TILES, num_stages=STAGES):
            p = (tl.program_id(0).to(tl.int64) * TILES + tile) * BLOCK_P + tl.arange(0, BLOCK_P)
            in_p = p < P
            inside = in_p[:, None] & in_n[None, :]
            state = load_rows(at_S, p * stride_S_p, n, in_p, in_n).to(tl.float32)
            x_l = load_rows(at_ring, at_past * stride_ring_x_l, p, past, in_p)
            held_x = tl.load(x + b * stride_x_b + h * stride_x_h + p, mask=in_p & real, other=0.0)
            x_t = held_x.to(tl.float32)
            if OUTPUT_ONLY:
                y_t = tl.exp(G) * tl.sum(state * C_t[None, :], axis=1) + read_t * x_t
                y_t += tl.sum(read_l[:, None] * x_l.to(tl.float32), axis=0)  # (1)
                if full:
                    state = _advanced(state, G, weight_l, x_l, B_l, step * x_t, B_t)
                    tl.store(at_S + p[:, None] * stride_S_p + n[None, :], state.to(S.dtype.element_ty), mask=inside)  # (5)
            else:
                state = _advanced(state, G, weight_l, x_l, B_l, step * x_t, B_t)
                y_t = tl.sum(state * C_t[None, :], axis=1)  # (2)
                tl.store(at_S + p[:, None] * stride_S_p + n[None, :], state.to(S.dtype.element_ty), mask=inside & full)  # (5)
            if D is not None:
                y_t += tl.load(D + h * stride_D_h + p * stride_D_p, mask=in_p, other=0.0).to(tl.float32) * x_t
            if z is not None:
                z_t = tl.load(z + b * stride_z_b + h * stride_z_h + p, mask=in_p & real, other=0.0)
                y_t *= silu(z_t.to(tl.float32))  # (3)
            tl.store(y + b * stride_y_b + h * stride_y_h + p, y_t.to(y.dtype.element_ty), mask=in_p)
            tl.store(at_ring + at_new * stride_ring_x_l + p, held_x, mask=in_p & new)  # (4)


@triton.jit
def _advanced(state, G, weight_l, x_l, B_l, x_t, B_t):
    """S_t (2); x_t comes with its dt."""
    past = dot_left(tl.trans(weight_l[:, None] * x_l.to(tl.float32)), B_l)
    return tl.exp(G) * state + past + x_t[:, None] * B_t.to(tl.float32)[None, :]
