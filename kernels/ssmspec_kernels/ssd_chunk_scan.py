"""SSD (Mamba-2) over long prompts: packed sequences, chunk by chunk, in two launches.

    G_i  = running sum of dt A from the first token of the chunk, dt as in `ssd_inputs`          (1)
    U_c  = sum_j exp(G_T - G_j) dt_j x_j B_j^T            what chunk c adds                      (2)
    S_c' = exp(G_T) S_c + U_c                             from chunk to chunk of a sequence      (3)
    y_i  = sum_j w_ij x_j + exp(G_i) S_c C_i + D x_i,     then y silu(z) where z is given        (4)

The first launch walks each sequence by (2) and (3) with a tile of the state in registers, and keeps S_c, the state that a
chunk starts from. The second forms (4) of all chunks and heads at once, for it knows of other chunks only through S_c. States
between the launches are fp32. Products are as accurate as fp32 (`dots`).

Layout: x (t, h, p) and the like, all sequences in one run; S (s, h, p, n), a pool that sequences reach through `slots`; the
scratch (c, h, p, n) has a state for each chunk (`packed_chunks`). Bound by the products of (4), the scratch, and the walk.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError, ShapeMismatch

from .dots import dot_inputs, dot_left, dot_right
from .functions import silu
from .launch import FLOATS, INDICES, check_pool, d_strides, divides, sizes, strides
from .packed_chunks import check_packed, chunk_place, most, packed_arguments, sequence_place
from .ssd_inputs import check_one_type, load_rows, step_size, weights


def traffic_bytes(
    tokens: int, chunks: int, sequences: int, h: int, p: int, n: int, g: int, *, state: int = 4, io: int = 2, z: bool = False
) -> int:
    """Bytes that must cross the memory bus, each once: tokens, states of live sequences that are not fresh, and the scratch.

    x, dt and B count as read once, though both launches read them. Parameters are left out. Units: bytes; `state` and `io`
    are the bytes of an element.
    """
    run = io * tokens * (h * p * (3 if z else 2) + 2 * g * n + h)
    return run + h * p * n * (2 * sequences * state + 2 * chunks * 4)


def scratch_shape(tokens: int, sequences: int, h: int, p: int, n: int, *, chunk: int = 64) -> tuple[int, int, int, int]:
    """The shape of the scratch (fp32) that a run needs."""
    return most(tokens, sequences, chunk), h, p, n


def ssd_chunk_scan(
    S: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    bounds: Tensor,
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Tensor | None = None,
    fresh: Tensor | None = None,
    places: Tensor | None = None,
    out: Tensor | None = None,
    scratch: Tensor | None = None,
    chunk: int = 64,
    block_p: int | None = None,
    block_n: int = 128,
    walk_p: int = 16,
    num_warps: int = 4,
    walk_warps: int = 4,
) -> Tensor:
    """The outputs (t, h, p) of a packed run, and in S[slots] the state after each sequence: equations (1) to (4).

    Sequence b has the tokens bounds[b] .. bounds[b + 1] - 1; bounds never fall, and stay where a sequence is empty. Tokens
    outside, and those of a sequence with a negative slot, are neither read nor written. A sequence that is `fresh` (b)
    starts from zeros, whatever its slot holds. `places` (c) names a slot of S for the state after each chunk, in the order
    of `ssmspec_ref.packed.every` with blocks of `chunk` tokens; a negative one is not kept. No place may be the slot or a
    place of another sequence.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    axes = sizes(
        [
            ("S", S, "s h p n", FLOATS),
            ("x", x, "t h p", FLOATS),
            ("dt", dt, "t h", FLOATS),
            ("A", A, "h", (torch.float32,)),
            ("B", B, "t g n", FLOATS),
            ("C", C, "t g n", FLOATS),
            ("D", D, "h p" if D is not None and D.dim() == 2 else "h", FLOATS),
            ("z", z, "t h p", FLOATS),
            ("dt_bias", dt_bias, "h", FLOATS),
            ("places", places, "c", INDICES),
            ("out", out, "t h p", FLOATS),
            ("scratch", scratch, "chunks h p n", (torch.float32,)),
            *packed_arguments(bounds, slots, fresh),
        ]
    )
    t, h, p, n, g = (axes[k] for k in "thpng")
    sequences = check_packed(axes, chunk)
    divides(g, h)
    check_pool(axes["s"], sequences, slots)
    check_one_type(x=x, B=B, C=C)
    low, high = dt_limit
    if not 0 <= low <= high:
        raise ParameterError(f"dt_limit came as ({low}, {high}); give 0 <= low <= high")
    shape = scratch_shape(t, sequences, h, p, n, chunk=chunk)
    if places is not None and len(places) < shape[0]:
        raise ShapeMismatch(f"places hold {len(places)} entries, but the run may have {shape[0]} chunks; give one for each")
    if scratch is None:
        scratch = torch.empty(shape, dtype=torch.float32, device=S.device)
    elif tuple(scratch.shape) != shape or not scratch.is_contiguous():
        raise ShapeMismatch(f"scratch came with shape {tuple(scratch.shape)}, but {shape} is needed, without gaps")
    y = torch.empty_like(x) if out is None else out
    wide = max(16, triton.next_power_of_2(n))
    common = {"P": p, "N": n, "HEADS_PER_GROUP": h // g, "SOFTPLUS": dt_softplus, "LIMIT": dt_limit != (0.0, float("inf")),
              "CHUNK": chunk, "BLOCK_B": triton.next_power_of_2(sequences)}  # fmt: skip
    _chunk_starts_kernel[(triton.cdiv(p, walk_p), h, sequences)](
        S, x, dt, A, B, dt_bias, bounds, slots, fresh, places, scratch, *strides(S, 3), *strides(x, 2), *strides(dt, 2),
        *strides(B, 2), *strides(scratch, 3), t, sequences, shape[0], low, high,
        BLOCK_P=walk_p, BLOCK_N=wide, num_warps=walk_warps, **common,
    )  # fmt: skip
    _chunk_outputs_kernel[(h, shape[0])](
        x, dt, A, B, C, D, z, dt_bias, bounds, slots, scratch, y, *strides(x, 2), *strides(dt, 2), *strides(B, 2),
        *strides(C, 2), *strides(z, 2), *strides(scratch, 3), *strides(y, 2), *d_strides(D), t, sequences, low, high,
        BLOCK_P=block_p or min(max(16, triton.next_power_of_2(p)), 32), BLOCK_N=min(block_n, wide),
        num_warps=num_warps, **common,
    )  # fmt: skip
    return y


@triton.jit
def _steps(
    dt, A, dt_bias, t, h, real, stride_dt_t, stride_dt_h, low, high, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr
):  # fmt: skip
    """dt and dt A at tokens t, 0 where they are not real."""
    bias = 0.0
    if dt_bias is not None:
        bias = tl.load(dt_bias + h).to(tl.float32)
    raw = tl.load(dt + t * stride_dt_t + h * stride_dt_h, mask=real, other=0.0)
    step = step_size(raw, real, bias, low, high, SOFTPLUS, LIMIT)
    return step, step * tl.load(A + h)


@triton.jit
def _chunk_starts_kernel(
    S, x, dt, A, B, dt_bias, bounds, slots, fresh, places, scratch,
    stride_S_s, stride_S_h, stride_S_p, stride_x_t, stride_x_h, stride_dt_t, stride_dt_h, stride_B_t, stride_B_g,
    stride_U_c, stride_U_h, stride_U_p, tokens, sequences, chunks, low, high,
    P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        start, end, first, count = sequence_place(bounds, b, sequences, tokens, chunks, CHUNK, BLOCK_B)
        p = (tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)).to(tl.int64)
        n = tl.arange(0, BLOCK_N)
        in_p, in_n = p < P, n < N
        inside = in_p[:, None] & in_n[None, :]
        at_S = S + h * stride_S_h + p[:, None] * stride_S_p + n[None, :]
        held = inside
        if fresh is not None:
            held = inside & (tl.load(fresh + b) == 0)
        state = tl.load(at_S + slot * stride_S_s, mask=held, other=0.0).to(tl.float32)
        at_U = scratch + first * stride_U_c + h * stride_U_h + p[:, None] * stride_U_p + n[None, :]
        for c in tl.range(0, count):
            tl.store(at_U + c * stride_U_c, state, mask=inside)
            t = start + c * CHUNK + tl.arange(0, CHUNK)
            real = t < end
            step, ld = _steps(dt, A, dt_bias, t, h, real, stride_dt_t, stride_dt_h, low, high, SOFTPLUS, LIMIT)
            total, G = tl.sum(ld, axis=0), tl.cumsum(ld, axis=0)  # (1)
            x_t = load_rows(x + h * stride_x_h, t * stride_x_t, p, real, in_p).to(tl.float32)
            B_t = load_rows(B + (h // HEADS_PER_GROUP) * stride_B_g, t * stride_B_t, n, real, in_n)
            brought = tl.trans((tl.exp(total - G) * step)[:, None] * x_t)
            state = tl.exp(total) * state + dot_left(brought, B_t)  # (2) (3)
            if places is not None:
                place = tl.load(places + first + c).to(tl.int64)
                tl.store(at_S + place * stride_S_s, state.to(S.dtype.element_ty), mask=inside & (place >= 0))
        tl.store(at_S + slot * stride_S_s, state.to(S.dtype.element_ty), mask=inside)


@triton.jit
def _chunk_outputs_kernel(
    x, dt, A, B, C, D, z, dt_bias, bounds, slots, scratch, y,
    stride_x_t, stride_x_h, stride_dt_t, stride_dt_h, stride_B_t, stride_B_g, stride_C_t, stride_C_g, stride_z_t, stride_z_h,
    stride_U_c, stride_U_h, stride_U_p, stride_y_t, stride_y_h, stride_D_h, stride_D_p, tokens, sequences, low, high,
    P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    c, h = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64)
    b, start, end = chunk_place(bounds, c, sequences, tokens, CHUNK, BLOCK_B)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b, mask=b >= 0, other=-1).to(tl.int64)
    if slot >= 0:
        g = h // HEADS_PER_GROUP
        i = tl.arange(0, CHUNK)
        t = start + i
        real = t < end
        at_B, at_C = B + g * stride_B_g, C + g * stride_C_g
        scores = tl.zeros([CHUNK, CHUNK], tl.float32)
        for n0 in tl.static_range(0, N, BLOCK_N):
            n = n0 + tl.arange(0, BLOCK_N)
            C_t = load_rows(at_C, t * stride_C_t, n, real, n < N)
            scores += dot_inputs(C_t, tl.trans(load_rows(at_B, t * stride_B_t, n, real, n < N)))
        step, ld = _steps(dt, A, dt_bias, t, h, real, stride_dt_t, stride_dt_h, low, high, SOFTPLUS, LIMIT)
        G = tl.cumsum(ld, axis=0)  # (1)
        w = weights(G, G, step, (i[:, None] >= i[None, :]) & real[:, None], scores)
        for p0 in range(0, P, BLOCK_P):
            p = p0 + tl.arange(0, BLOCK_P).to(tl.int64)
            in_p = p < P
            x_t = load_rows(x + h * stride_x_h, t * stride_x_t, p, real, in_p)
            from_state = tl.zeros([CHUNK, BLOCK_P], tl.float32)
            for n0 in tl.static_range(0, N, BLOCK_N):
                n = n0 + tl.arange(0, BLOCK_N)
                C_t = load_rows(at_C, t * stride_C_t, n, real, n < N)
                state = load_rows(scratch + c * stride_U_c + h * stride_U_h, p * stride_U_p, n, in_p, n < N)
                from_state += dot_right(C_t, tl.trans(state))
            y_t = dot_left(w, x_t) + tl.exp(G)[:, None] * from_state  # (4)
            if D is not None:
                skip = tl.load(D + h * stride_D_h + p * stride_D_p, mask=in_p, other=0.0).to(tl.float32)
                y_t += skip[None, :] * x_t.to(tl.float32)
            if z is not None:
                y_t *= silu(load_rows(z + h * stride_z_h, t * stride_z_t, p, real, in_p).to(tl.float32))
            at_y = y + t[:, None] * stride_y_t + h * stride_y_h + p[None, :]
            tl.store(at_y, y_t.to(y.dtype.element_ty), mask=real[:, None] & in_p[None, :])
