"""SSD (Mamba-2) from a checkpoint and a ring: standard decode, one token for each row, by two routes.

With S_0 the checkpoint, j the tokens held since it, t the new one, and G the sum of dt A from the checkpoint on,

    output only:       y = exp(G_t) S_0 C + sum_{j held} exp(G_t - G_j) dt_j (C . B_j) x_j + dt_t (C . B_t) x_t     (1)
    state and output:  S_t = exp(G_t) S_0 + sum_j exp(G_t - G_j) dt_j x_j B_j^T + dt_t x_t B_t^T,   y = S_t C       (2)
    then y + D x, and y silu(z) where z is given                                                                    (3)
    ring: x, dt, B of the token behind the held ones, unless it is the L-th                                         (4)
    S_0' = S_t of (2) where held + 1 = L                                                                            (5)

The token is accepted already, so the L-th goes into the checkpoint with the others. The cursors are moved afterwards, once
for all layers (`cursors.commit_step`).

Where rows are many, (1) is a window of one token: the kernel of `ssd_buffered`, whose tensor cores leave the time of the
bytes. Where they are few, and for (2), a program of this file walks TILES tiles (p, n) of the heads of one group of one row:
fewer stages stand between the launch and the output. C . B is computed once for all of them. The two sum in different orders:
a row's last bits may depend on which of them the number of rows chose. S_0 is read once, and written once in L tokens, in its
own type; nothing is rounded to less than fp32. Here n lies in registers first, so that few shuffles sum over it.
Bound by the bytes of the state and of the ring's live entries; for few rows by the chain slot, cursors, ring, products; (2)
for many rows by the instructions of its products.
Source: ReplaySSM, algorithms 2 and 6.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from .functions import silu
from .launch import INDICES, d_strides, strides
from .ssd_buffered import launch
from .ssd_inputs import check_inputs, load_rows, step_size
from .ssd_ring import Ring, entry_bytes, fold, place
from .ssd_scan import traffic_bytes as scan_bytes

FEW = 2048
"""Heads of rows below which (1) is taken by the kernel of few rows: measured on an H200 at 1280 and 5120."""


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
    few: bool | None = None,
    block_p: int | None = None,
    program_p: int | None = None,
    heads: int | None = None,
    num_warps: int | None = None,
    stages: int | None = None,
    apart: bool | None = None,
    tiles: int | None = None,
    run: int = 32,
) -> Tensor:
    """Decode one token (b, 1, ..) behind the history of S[slots], and hold it; outputs (b, 1, h, p): (1) or (2), then (3).

    `lengths` (b) is 0 for a row without a token: its output is 0 and nothing of it changes. The cursors of `ring` are read,
    not moved. A slot may be named by one row only. `few` chooses the kernel of few rows for (1); `tiles` and `run` are its,
    `program_p`, `heads`, `stages` and `apart` those of `ssd_buffered`.

    Raises: ShapeMismatch, PrecisionError, ParameterError (a window of more than one token), before anything is written.
    """
    more = [("lengths", lengths, "b", INDICES), *ring.arguments()]
    axes = check_inputs(S, x, dt, A, B, C, D, z, dt_bias, dt_limit, slots, out, *more)
    b, t, h, p, n, g = (axes[k] for k in "bthpng")
    ring.check_types(x, B, C)
    if t != 1:
        raise ParameterError(f"the window holds {t} tokens; standard decode takes one, ssd_buffered several")
    y = x.new_empty(x.shape) if out is None else out
    if few is None:
        few = b * h < FEW
    if output_only and not few:
        launch(
            axes, S, ring, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, slots, lengths, y, 0,
            (block_p, program_p, heads, num_warps, stages, apart),
        )  # fmt: skip
        return y
    each, warps = choice(b * h)
    block = block_p or 16
    across = triton.cdiv(p, block)
    each = min(tiles or each, across * (h // g))
    _ssd_buffered_step_kernel[(triton.cdiv(across * (h // g), each), g, b)](
        S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, ring.x, ring.dt, ring.B, ring.origin, ring.held, y,
        *strides(S, 3), *(a.stride(axis) for a in (x, dt, B, C) for axis in (0, 2)), *strides(z, 3)[::2],
        *strides(y, 3)[::2], *strides(ring.x, 3), *strides(ring.dt, 3), *strides(ring.B, 3), *d_strides(D), *dt_limit,
        P=p, N=n, HEADS_PER_GROUP=h // g, SOFTPLUS=dt_softplus, LIMIT=dt_limit != (0.0, float("inf")),
        OUTPUT_ONLY=output_only, CAPACITY=ring.capacity, BLOCK_L=max(16, triton.next_power_of_2(ring.capacity)),
        BLOCK_N=max(16, triton.next_power_of_2(n)), BLOCK_P=block, TILES=each,
        RUN=min(run, max(16, triton.next_power_of_2(n))), num_warps=num_warps or warps,
    )  # fmt: skip
    return y


def choice(rows: int) -> tuple[int, int]:
    """Tiles of a program and its warps; `rows` counts heads of rows."""
    if rows >= 4096:
        return 16 if rows >= 16384 else 4, 1
    return 1, 2 if rows >= 1024 else 4


@triton.jit
def _ssd_buffered_step_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, ring_x, ring_dt, ring_B, origin, held, y, stride_S_s: tl.constexpr,
    stride_S_h: tl.constexpr, stride_S_p: tl.constexpr, stride_x_b: tl.constexpr, stride_x_h: tl.constexpr,
    stride_dt_b: tl.constexpr, stride_dt_h: tl.constexpr, stride_B_b: tl.constexpr, stride_B_g: tl.constexpr,
    stride_C_b: tl.constexpr, stride_C_g: tl.constexpr, stride_z_b: tl.constexpr, stride_z_h: tl.constexpr,
    stride_y_b: tl.constexpr, stride_y_h: tl.constexpr, stride_ring_x_s: tl.constexpr, stride_ring_x_l: tl.constexpr,
    stride_ring_x_h: tl.constexpr, stride_ring_dt_s: tl.constexpr, stride_ring_dt_l: tl.constexpr,
    stride_ring_dt_h: tl.constexpr, stride_ring_B_s: tl.constexpr, stride_ring_B_l: tl.constexpr,
    stride_ring_B_g: tl.constexpr, stride_D_h: tl.constexpr, stride_D_p: tl.constexpr, low, high, P: tl.constexpr,
    N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, OUTPUT_ONLY: tl.constexpr,
    CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr,
    TILES: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    g = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    real = True
    if lengths is not None:
        real = tl.load(lengths + b) > 0
    count = tl.load(held + slot, mask=slot >= 0, other=0).to(tl.int32)
    full = (count + 1 == CAPACITY) & real
    if slot >= 0:
        across: tl.constexpr = (P + BLOCK_P - 1) // BLOCK_P
        l = tl.arange(0, BLOCK_L)
        n = tl.arange(0, BLOCK_N // RUN)[:, None] * RUN + tl.arange(0, RUN)[None, :]
        flat = tl.arange(0, BLOCK_N)
        in_n, in_flat = n < N, flat < N
        first = tl.load(origin + slot).to(tl.int32)
        kept = (count + 1 < CAPACITY) & real
        past, new = l < count, l == count
        at, at_new = place(first + l, CAPACITY), place(first + count, CAPACITY)
        at_B = ring_B + slot * stride_ring_B_s + g * stride_ring_B_g
        B_t = tl.load(B + b * stride_B_b + g * stride_B_g + flat, mask=in_flat & real, other=0.0)
        C_flat = tl.load(C + b * stride_C_b + g * stride_C_g + flat, mask=in_flat & real, other=0.0).to(tl.float32)
        if OUTPUT_ONLY:
            B_l = load_rows(at_B, at * stride_ring_B_l, flat, past, in_flat)
            B_l = tl.where(new[:, None], B_t[None, :], B_l).to(tl.float32)
            scores = tl.sum(B_l * C_flat[None, :], axis=1)
        C_t = tl.load(C + b * stride_C_b + g * stride_C_g + n, mask=in_n & real, other=0.0).to(tl.float32)
        tl.store(at_B + at_new * stride_ring_B_l + flat, B_t, mask=in_flat & kept & (tl.program_id(0) == 0))  # (4)
        for i in tl.range(0, TILES, num_stages=1):
            index = tl.program_id(0) * TILES + i
            live = index < HEADS_PER_GROUP * across
            h = g * HEADS_PER_GROUP + index // across
            p = (index % across) * BLOCK_P + tl.arange(0, BLOCK_P)
            in_p = (p < P) & live
            inside = in_p[None, :, None] & in_n[:, None, :]
            at_S = S + slot * stride_S_s + h * stride_S_h
            state = tl.load(at_S + p[None, :, None] * stride_S_p + n[:, None, :], mask=inside, other=0.0).to(tl.float32)
            decay = tl.load(A + h, mask=live, other=0.0)
            raw = tl.load(dt + b * stride_dt_b + h * stride_dt_h, mask=live, other=0.0)
            bias = 0.0
            if dt_bias is not None:
                bias = tl.load(dt_bias + h, mask=live, other=0.0).to(tl.float32)
            at_x = ring_x + slot * stride_ring_x_s + h * stride_ring_x_h
            at_dt = ring_dt + slot * stride_ring_dt_s + h * stride_ring_dt_h
            x_l = load_rows(at_x, at * stride_ring_x_l, p, past, in_p)
            step_l = tl.load(at_dt + at * stride_ring_dt_l, mask=past & live, other=0.0)
            x_t = tl.load(x + b * stride_x_b + h * stride_x_h + p, mask=in_p & real, other=0.0)
            x_l = tl.where(new[:, None], x_t[None, :], x_l).to(tl.float32)
            step = step_size(raw, real, bias, low, high, SOFTPLUS, LIMIT)
            step_l = tl.where(new, step, step_l)
            G_l, G = tl.cumsum(step_l * decay, axis=0), tl.sum(step_l * decay, axis=0)
            weight_l = tl.exp(G - G_l) * step_l
            if OUTPUT_ONLY:
                y_t = tl.exp(G) * tl.sum(tl.sum(state * C_t[:, None, :], axis=0), axis=1)
                y_t += tl.sum((weight_l * scores)[:, None] * x_l, axis=0)  # (1)
            if full or not OUTPUT_ONLY:
                flat_state = fold(
                    tl.reshape(tl.permute(state, (1, 0, 2)), (BLOCK_P, BLOCK_N)), G - step * decay, decay,
                    at_x, at_dt, at_B, stride_ring_x_l, stride_ring_dt_l, stride_ring_B_l, first, count, p, flat,
                    in_p, in_flat, CAPACITY,
                )  # fmt: skip
                update = (step * x_t.to(tl.float32))[:, None] * B_t.to(tl.float32)[None, :]
                flat_state = tl.exp(step * decay) * flat_state + update
                if not OUTPUT_ONLY:
                    y_t = tl.sum(flat_state * C_flat[None, :], axis=1)  # (2)
                flat_inside = in_p[:, None] & in_flat[None, :] & full
                at_tile = at_S + p[:, None] * stride_S_p + flat[None, :]
                tl.store(at_tile, flat_state.to(S.dtype.element_ty), mask=flat_inside)  # (5)
            if D is not None:
                y_t += tl.load(D + h * stride_D_h + p * stride_D_p, mask=in_p, other=0.0).to(tl.float32) * x_t.to(tl.float32)
            if z is not None:
                z_t = tl.load(z + b * stride_z_b + h * stride_z_h + p, mask=in_p & real, other=0.0)
                y_t *= silu(z_t.to(tl.float32))  # (3)
            tl.store(y + b * stride_y_b + h * stride_y_h + p, y_t.to(y.dtype.element_ty), mask=in_p)
            tl.store(at_x + at_new * stride_ring_x_l + p, x_t, mask=in_p & kept)
            tl.store(at_dt + at_new * stride_ring_dt_l, step, mask=kept & live & (index % across == 0))  # (4)
