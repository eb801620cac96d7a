"""SSD (Mamba-2) over long prompts: packed sequences, chunk by chunk, in three launches.

    G_i  = running sum of dt A from the first token of the chunk, dt as in `ssd_inputs`          (1)
    U_c  = sum_j exp(G_T - G_j) dt_j x_j B_j^T            what chunk c adds                      (2)
    S_c' = exp(G_T) S_c + U_c                             from chunk to chunk of a sequence      (3)
    y_i  = sum_j w_ij x_j + exp(G_i) S_c C_i + D x_i,     then y silu(z) if z is given           (4)

The first launch computes dt and (1). The second processes each sequence by (2) and (3) with a tile of the state in registers,
and stores S_c, the initial state of each chunk. The third computes (4) of all chunks in parallel, because it needs other
chunks only through S_c: a program has one chunk and several heads of a group, which share C_i . B_j, and loads the state of
the next head while it computes this one. Products are as accurate as fp32, and intermediate results are stored in fp32; with
products in bf16 (`contract.Products`) S_c is stored rounded, in the layout of the products. The state itself is still summed
in fp32.

Layout: x (t, h, p) and the like, all sequences in one run; S (s, h, p, n), a pool that sequences reach through `slots`; the
scratch (c, h, i) holds for each chunk (`packed_chunks`) G, dt and S_c. Bound by the products of (4), the scratch, and the
scan.
"""

from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ShapeMismatch, Unsupported

from ..contract import Products, rounds
from ..launch import check_pool, d_strides, divides, strides
from ..row import FP32, Axes, Bounds, Fresh, Slots, launcher, points, reads, updates, writes
from ..shared.dots import dot_inputs, dot_left, dot_right
from ..shared.functions import silu
from ..shared.packed_chunks import check_packed, chunk_place, most_chunks, sequence_place
from ..shared.tuning import H200
from . import ssd_inputs as ssd
from .ssd_inputs import check_limit, check_one_type, load_rows, step_size, weights_by_token


def traffic_bytes(
    tokens: int,
    chunks: int,
    sequences: int,
    h: int,
    p: int,
    n: int,
    g: int,
    *,
    chunk: int = H200["ssd_chunk_scan"]["chunk"],
    state: int = 4,
    io: int = 2,
    z: bool = False,
    products: Products = "fp32",
) -> int:
    """Bytes that must cross the memory bus, each once: tokens, states of live sequences that are not fresh, and the scratch.

    x and B count as read once, although two launches read them. Parameters are left out. Units: bytes; `state` and `io`
    are the bytes of an element.
    """
    run = io * tokens * (h * p * (3 if z else 2) + 2 * g * n + h)
    held = p * n * (4 if products == "fp32" else 2)
    return run + 2 * h * (sequences * p * n * state + chunks * (held + 2 * chunk * 4))


def scratch_shape(
    tokens: int,
    sequences: int,
    h: int,
    p: int,
    n: int,
    *,
    chunk: int = H200["ssd_chunk_scan"]["chunk"],
    products: Products = "fp32",
) -> tuple[int, int, int]:
    """The shape of the scratch (fp32) that a run needs; two bf16 states share a number."""
    return most_chunks(tokens, sequences, chunk), h, 2 * chunk + (p * n if products == "fp32" else triton.cdiv(p * n, 2))


@launcher
def ssd_chunk_scan(
    axes: Axes,
    S: ssd.State,
    x: Annotated[Tensor, reads("t h p")],
    dt: Annotated[Tensor, reads("t h")],
    A: ssd.Decay,
    B: Annotated[Tensor, reads("t g n")],
    C: Annotated[Tensor, reads("t g n")],
    bounds: Bounds,
    *,
    D: ssd.Skip | None = None,
    z: Annotated[Tensor, reads("t h p")] | None = None,
    dt_bias: ssd.PerHead | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Slots | None = None,
    fresh: Fresh | None = None,
    places: Annotated[Tensor, points("c")] | None = None,
    out: Annotated[Tensor, writes("t h p")] | None = None,
    scratch: Annotated[Tensor, updates("chunks h numbers", FP32, "fp32", "whole")] | None = None,
    products: Products = "fp32",
    chunk: int = H200["ssd_chunk_scan"]["chunk"],
    block_p: int | None = None,
    block_n: int = H200["ssd_chunk_scan"]["block_n"],
    heads: int = H200["ssd_chunk_scan"]["heads"],
    num_warps: int = H200["ssd_chunk_scan"]["warps"],
    num_stages: int = H200["ssd_chunk_scan"]["stages"],
    walk_p: int = H200["ssd_chunk_scan"]["walk_p"],
    walk_warps: int | None = None,
    walk_stages: int = H200["ssd_chunk_scan"]["walk_stages"],
) -> Tensor:
    """The outputs (t, h, p) of a packed run, and in S[slots] the state after each sequence: equations (1) to (4).

    Sequence b has the tokens bounds[b] .. bounds[b + 1] - 1; bounds never decrease, and an empty sequence repeats one. Tokens
    outside, and those of a sequence with a negative slot, are neither read nor written. A sequence that is `fresh` (b) starts
    from zeros, whatever its slot holds. `places` (c) gives a slot of S for the state after each chunk, in the order of
    `ssmspec_ref.packed.every` with blocks of `chunk` tokens; nothing is stored for a negative one. No place may be the slot
    or a place of another sequence. `products` "bf16" rounds the operands of the products, as mamba-ssm does.

    Raises: ShapeMismatch, PrecisionError, ParameterError, Unsupported (tiles whose compiled code was not tested), before
    anything is written.
    """
    t, h, p, n, g = (axes[k] for k in "thpng")
    sequences = check_packed(axes, chunk)
    divides(g, h)
    check_pool(axes["s"], sequences, slots)
    check_one_type(x=x, B=B, C=C)
    rounded = rounds(products, x.dtype)
    check_limit(dt_limit)
    if num_warps > 4 or num_stages < 2:
        raise Unsupported(
            f"num_warps is {num_warps} and num_stages is {num_stages}; as compiled for a GPU the outputs are checked "
            "with up to 4 warps and with 2 stages or more"
        )
    shape = scratch_shape(t, sequences, h, p, n, chunk=chunk, products=products)
    if places is not None and len(places) < shape[0]:
        raise ShapeMismatch(f"places hold {len(places)} entries, but the run may have {shape[0]} chunks; give one for each")
    if scratch is None:
        scratch = torch.empty(shape, dtype=torch.float32, device=S.device)
    elif tuple(scratch.shape) != shape:
        raise ShapeMismatch(f"scratch has shape {tuple(scratch.shape)}, but {shape} is needed")
    y = torch.empty_like(x) if out is None else out
    # Products in bf16 leave registers for wider tiles.
    row = H200["ssd_chunk_scan"]
    most_p = row["rounded_block_p" if rounded else "block_p"]
    warps = row["rounded_walk_warps" if rounded else "walk_warps"]
    wide, block = max(16, triton.next_power_of_2(n)), block_p or min(max(16, triton.next_power_of_2(p)), most_p)
    shared = next(k for k in range(min(heads, h // g), 0, -1) if h // g % k == 0)
    states = scratch.view(torch.bfloat16) if rounded else scratch
    packed = {"CHUNK": chunk, "BLOCK_B": triton.next_power_of_2(sequences)}
    common = {"P": p, "N": n, "HEADS_PER_GROUP": h // g, "ROUND": rounded, **packed}
    _chunk_steps_kernel[(triton.cdiv(h, row["steps_heads"]), shape[0])](
        dt, A, dt_bias, bounds, slots, scratch, *strides(dt, 2), *strides(scratch, 2), t, sequences, *dt_limit,
        H=h, SOFTPLUS=dt_softplus, LIMIT=dt_limit != (0.0, float("inf")), BLOCK_H=row["steps_heads"], **packed,
    )  # fmt: skip
    _chunk_starts_kernel[(triton.cdiv(p, walk_p), h, sequences)](
        S, x, B, bounds, slots, fresh, places, scratch, states, *strides(S, 3), *strides(x, 2), *strides(B, 2),
        *strides(scratch, 2), t, sequences, shape[0], BLOCK_P=walk_p, BLOCK_N=wide, STAGES=walk_stages,
        num_warps=walk_warps or warps, **common,
    )  # fmt: skip
    _chunk_outputs_kernel[(h // shared, shape[0])](
        x, B, C, D, z, bounds, slots, scratch, states, y, *strides(x, 2), *strides(B, 2), *strides(C, 2), *strides(z, 2),
        *strides(scratch, 2), *strides(y, 2), *d_strides(D), t, sequences, HEADS=shared, TILES=triton.cdiv(p, block),
        BLOCK_P=block, BLOCK_N=min(block_n, wide), STAGES=num_stages, num_warps=num_warps, **common,
    )  # fmt: skip
    return y


@triton.jit
def _chunk_steps_kernel(
    dt, A, dt_bias, bounds, slots, scratch, stride_dt_t, stride_dt_h, stride_c, stride_h, tokens, sequences, low, high,
    H: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, CHUNK: tl.constexpr, BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1).to(tl.int64)
    b, start, end = chunk_place(bounds, c, sequences, tokens, CHUNK, BLOCK_B)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b, mask=b >= 0, other=-1).to(tl.int64)
    if slot >= 0:
        h, i = (tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)).to(tl.int64), tl.arange(0, CHUNK)
        t = start + i
        in_h = (h < H)[None, :]
        real = (t < end)[:, None] & in_h
        bias = 0.0
        if dt_bias is not None:
            bias = tl.load(dt_bias + h[None, :], mask=in_h, other=0.0).to(tl.float32)
        raw = tl.load(dt + t[:, None] * stride_dt_t + h[None, :] * stride_dt_h, mask=real, other=0.0)
        step = step_size(raw, real, bias, low, high, SOFTPLUS, LIMIT)
        G = tl.cumsum(step * tl.load(A + h[None, :], mask=in_h, other=0.0), axis=0)  # (1)
        at = scratch + c * stride_c + h[None, :] * stride_h + i[:, None]
        there = in_h & (i >= 0)[:, None]
        tl.store(at, G, mask=there)
        tl.store(at + CHUNK, step, mask=there)


@triton.jit
def _chunk_starts_kernel(
    S, x, B, bounds, slots, fresh, places, scratch, states, stride_S_s, stride_S_h, stride_S_p, stride_x_t, stride_x_h,
    stride_B_t, stride_B_g, stride_c, stride_h, tokens, sequences, chunks,
    P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, ROUND: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    PARTS: tl.constexpr = 2 if ROUND else 1
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        start, end, first, count = sequence_place(bounds, b, sequences, tokens, chunks, CHUNK, BLOCK_B)
        p = (tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)).to(tl.int64)
        n, i = tl.arange(0, BLOCK_N), tl.arange(0, CHUNK)
        in_p, in_n = p < P, n < N
        inside = in_p[:, None] & in_n[None, :]
        at_S = S + h * stride_S_h + p[:, None] * stride_S_p + n[None, :]
        held = inside
        if fresh is not None:
            held = inside & (tl.load(fresh + b) == 0)
        state = tl.load(at_S + slot * stride_S_s, mask=held, other=0.0).to(tl.float32)
        of_head = first * stride_c + h * stride_h
        at_G = scratch + of_head + i
        at_U = states + (of_head + 2 * CHUNK) * PARTS + p[:, None] * N + n[None, :]
        at_x, at_B = x + h * stride_x_h, B + (h // HEADS_PER_GROUP) * stride_B_g
        for c in tl.range(0, count, num_stages=STAGES):
            tl.store(at_U + c * stride_c * PARTS, state.to(states.dtype.element_ty), mask=inside)
            t = start + c * CHUNK + i
            real = t < end
            G, step = tl.load(at_G + c * stride_c), tl.load(at_G + c * stride_c + CHUNK)
            # G of the last real token: a running sum rounds that of the padding after it differently.
            total = tl.sum(tl.where(i == tl.minimum(end - start - c * CHUNK, CHUNK) - 1, G, 0.0), axis=0)
            x_t = load_rows(at_x, t * stride_x_t, p, real, in_p).to(tl.float32)
            brought = tl.trans((tl.exp(total - G) * step)[:, None] * x_t)
            B_t = load_rows(at_B, t * stride_B_t, n, real, in_n)
            state = tl.exp(total) * state + dot_left(brought, B_t, ROUND)  # (2) (3)
            if places is not None:
                place = tl.load(places + first + c).to(tl.int64)
                tl.store(at_S + place * stride_S_s, state.to(S.dtype.element_ty), mask=inside & (place >= 0))
        tl.store(at_S + slot * stride_S_s, state.to(S.dtype.element_ty), mask=inside)


@triton.jit
def _chunk_outputs_kernel(
    x, B, C, D, z, bounds, slots, scratch, states, y, stride_x_t, stride_x_h, stride_B_t, stride_B_g, stride_C_t, stride_C_g,
    stride_z_t, stride_z_h, stride_c, stride_h, stride_y_t, stride_y_h, stride_D_h, stride_D_p, tokens, sequences,
    P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, ROUND: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, HEADS: tl.constexpr, TILES: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    PARTS: tl.constexpr = 2 if ROUND else 1
    c, h0 = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * HEADS
    b, start, end = chunk_place(bounds, c, sequences, tokens, CHUNK, BLOCK_B)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b, mask=b >= 0, other=-1).to(tl.int64)
    if slot >= 0:
        i = tl.arange(0, CHUNK)
        t = start + i
        real = t < end
        at_B, at_C = B + (h0 // HEADS_PER_GROUP) * stride_B_g, C + (h0 // HEADS_PER_GROUP) * stride_C_g
        scores = tl.zeros([CHUNK, CHUNK], tl.float32)
        for n0 in tl.static_range(0, N, BLOCK_N):
            n = n0 + tl.arange(0, BLOCK_N)
            C_t = load_rows(at_C, t * stride_C_t, n, real, n < N)
            scores += dot_inputs(C_t, tl.trans(load_rows(at_B, t * stride_B_t, n, real, n < N)))
        sees = (i[:, None] >= i[None, :]) & real[:, None]
        for tile in tl.range(0, HEADS * TILES, num_stages=STAGES):
            h = h0 + tile // TILES
            p = (tile % TILES) * BLOCK_P + tl.arange(0, BLOCK_P).to(tl.int64)
            in_p = p < P
            of_head = c * stride_c + h * stride_h
            G, step = tl.load(scratch + of_head + i), tl.load(scratch + of_head + CHUNK + i)
            at_U = states + (of_head + 2 * CHUNK) * PARTS
            x_t = load_rows(x + h * stride_x_h, t * stride_x_t, p, real, in_p)
            from_state = tl.zeros([CHUNK, BLOCK_P], tl.float32)
            for n0 in tl.static_range(0, N, BLOCK_N):
                n = n0 + tl.arange(0, BLOCK_N)
                C_t = load_rows(at_C, t * stride_C_t, n, real, n < N)
                from_state += dot_right(C_t, tl.trans(load_rows(at_U, p * N, n, in_p, n < N)), ROUND)
            y_t = dot_left(weights_by_token(G, G, step, sees, scores), x_t, ROUND) + tl.exp(G)[:, None] * from_state  # (4)
            if D is not None:
                skip = tl.load(D + h * stride_D_h + p * stride_D_p, mask=in_p, other=0.0).to(tl.float32)
                y_t += skip[None, :] * x_t.to(tl.float32)
            if z is not None:
                y_t *= silu(load_rows(z + h * stride_z_h, t * stride_z_t, p, real, in_p).to(tl.float32))
            at_y = y + t[:, None] * stride_y_t + h * stride_y_h + p[None, :]
            tl.store(at_y, y_t.to(y.dtype.element_ty), mask=real[:, None] & in_p[None, :])
