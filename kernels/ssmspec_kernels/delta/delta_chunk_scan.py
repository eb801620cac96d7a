"""The gated delta rule over long prompts: packed sequences, chunk by chunk, in three launches (UT transform).

    G_i  = sum of g from the first token of the chunk; r, decayed, scores as in `delta_window`            (1)
    A_ij = beta_i scores(k)_ij for j < i,   P_ij = scores(q)_ij for j <= i,   T = (I + A)^-1 diag(beta)   (2)
    U    = T (v - decayed(k) S)                             what the tokens write                         (3)
    o    = decayed(q) S + P U                                                                             (4)
    S'   = diag(exp G_T) S + sum_j diag(exp(G_T - G_j)) k^_j u_j^T                                        (5)

(2) does not depend on the state. The first launch computes T, P and r of halves of 32 tokens in parallel, T by forward
substitution on the identity. The second joins the halves a and b of a chunk: below the diagonal T has -T_b scores(k)_ba T_a
(6). The third processes each sequence with a tile of the state in registers; per chunk it needs products only. Everything
between the launches is fp32, products are as accurate as fp32 (`dots`); or their operands are rounded to bf16
(`contract.Products`), while the state is still summed in fp32.

Layout: q, k (t, g, k), v (t, h, v), all sequences in one run; S (s, h, k, v), a pool that sequences index through `slots`;
the scratch (c, h, i, j) holds for each chunk (`packed_chunks`) the rows of T, those of P, r of the keys, r of the queries.
Bound by the third launch, each step of which waits for the previous one.
"""

from typing import Annotated

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError, ShapeMismatch, Unsupported

from ..contract import Products, rounds
from ..launch import check_pool, divides, strides
from ..row import FP32, Axes, Bounds, Fresh, Slots, launcher, points, reads, updates, writes
from ..shared.dots import dot_both
from ..shared.functions import sigmoid, softplus
from ..shared.packed_chunks import check_packed, chunk_place, most_chunks, sequence_place
from ..shared.strides import ChunkStrides, KeyStrides, PackedGroupStrides, PackedHeadStrides
from ..shared.tuning import H200
from ..ssd.ssd_inputs import load_rows
from .delta_inputs import Decay, GateBias, State, check_bias, check_scale, load_gate_params
from .delta_window import check_one_type, from_state, last, norms, scores, state_after, substituted


def traffic_bytes(
    tokens: int,
    chunks: int,
    sequences: int,
    g: int,
    h: int,
    k: int,
    v: int,
    *,
    chunk: int = 32,
    state: int = 4,
    io: int = 2,
    gate: int = 4,
    channel: bool = False,
) -> int:
    """Bytes that must cross the memory bus, each once: tokens, states of live sequences that are not fresh, the scratch.

    Units: bytes; `state`, `io` and `gate` are the bytes of an element; `gate` is that of g and beta. Parameters are left out.
    """
    run = tokens * (io * (2 * g * k + 2 * h * v) + gate * h * (1 + (k if channel else 1)))
    return run + 2 * sequences * h * k * v * state + 2 * chunks * h * 2 * (chunk + 1) * chunk * 4


def scratch_shape(tokens: int, sequences: int, h: int, *, chunk: int = 32) -> tuple[int, int, int, int]:
    """The shape of the scratch (fp32) that a run needs."""
    return most_chunks(tokens, sequences, chunk), h, 2 * (chunk + 1), chunk


@launcher
def delta_chunk_scan(
    axes: Axes,
    S: State,
    q: Annotated[Tensor, reads("t g k")],
    k: Annotated[Tensor, reads("t g k")],
    v: Annotated[Tensor, reads("t h v")],
    g: Annotated[Tensor, reads("t h | t h k", size="gate")],
    beta: Annotated[Tensor, reads("t h", size="gate")],
    bounds: Bounds,
    *,
    A: Decay | None = None,
    dt_bias: GateBias | None = None,
    l2_norm: bool = True,
    scale: float | None = None,
    eps: float = 1e-6,
    slots: Slots | None = None,
    fresh: Fresh | None = None,
    places: Annotated[Tensor, points("c")] | None = None,
    out: Annotated[Tensor, writes("t h v")] | None = None,
    scratch: Annotated[Tensor, updates("chunks h rows tokens", FP32, "fp32", "whole")] | None = None,
    products: Products = "fp32",
    chunk: int | None = None,
    block_v: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
    join_warps: int = H200["delta_chunk_scan"]["join_warps"],
) -> Tensor:
    """The outputs (t, h, v) of a packed run, and in S[slots] the state after each sequence: equations (1) to (5).

    `g` (t, h) or (t, h, k) is a log decay, `beta` (t, h); with `A` (h) both are given as projections (`delta_inputs`).
    Sequence b has the tokens bounds[b] .. bounds[b + 1] - 1; bounds never decrease, and an empty sequence repeats one. Tokens
    outside, and those of a sequence with a negative slot, are neither read nor written. A sequence that is `fresh` (b) starts
    from zeros, whatever its slot holds. `places` (c) gives a slot of S for the state after each chunk, in the order of
    `ssmspec_ref.packed.every` with blocks of `chunk` tokens; nothing is stored for a negative one. No place may be the slot
    or a place of another sequence. `products` "bf16" rounds the operands of the products, as fla does. The default tile is
    that of `tile`; with products in fp32 chunks of 64 spill registers, see docs/explanation/tuning.md.

    Raises: ShapeMismatch, PrecisionError, ParameterError, Unsupported (chunks of 64 on sm_100), before anything is written.
    """
    t, groups, h = (axes[a] for a in "tgh")
    measured = tile(products, S.device)
    chunk, block_v, num_warps = chunk or measured[0], block_v or measured[1], num_warps or measured[2]
    sequences = check_packed(axes, chunk)
    _check_chunk(chunk, S.device)
    divides(groups, h)
    check_pool(axes["s"], sequences, slots)
    check_one_type(q, k, v)
    rounded = rounds(products, q.dtype)
    num_stages = num_stages or stages(axes["k"], chunk > 32 and g.dim() == 3, rounded)
    scale = check_scale(scale, eps, axes["k"])
    check_bias(A, dt_bias)
    shape = scratch_shape(t, sequences, h, chunk=chunk)
    if places is not None and len(places) < shape[0]:
        raise ShapeMismatch(f"places hold {len(places)} entries, but the run may have {shape[0]} chunks; give one for each")
    if scratch is None:
        scratch = torch.empty(shape, dtype=torch.float32, device=S.device)
    elif tuple(scratch.shape) != shape:
        raise ShapeMismatch(f"scratch has shape {tuple(scratch.shape)}, but {shape} is needed")
    o = torch.empty_like(v) if out is None else out
    common = {"K": axes["k"], "HEADS_PER_KEY": h // groups, "CHANNEL": g.dim() == 3, "ROUND": rounded, "CHUNK": chunk,
              "BLOCK_B": triton.next_power_of_2(sequences), "SPLIT": q.dtype == torch.bfloat16,
              "BLOCK_K": max(16, triton.next_power_of_2(axes["k"]))}  # fmt: skip
    of_q, of_k = (PackedGroupStrides(*strides(x, 2)) for x in (q, k))
    of_g, of_scratch = PackedHeadStrides(*strides(g, 2)), ChunkStrides(*strides(scratch, 2))
    half = min(chunk, 32)
    _halves_kernel[(h, shape[0] * (chunk // half))](
        q, k, g, beta, A, dt_bias, bounds, slots, scratch, of_q, of_k, of_g, PackedHeadStrides(*strides(beta, 2)),
        of_scratch, *strides(dt_bias, 1), t, sequences, scale, eps,
        L2_NORM=l2_norm, HALF=half, num_warps=1, **common,
    )  # fmt: skip
    if half < chunk:
        _join_kernel[(h, shape[0])](
            q, k, g, A, dt_bias, bounds, slots, scratch, of_q, of_k, of_g, of_scratch, *strides(dt_bias, 1), t, sequences,
            HALF=half, num_warps=join_warps, **common,
        )  # fmt: skip
    _chunk_walk_kernel[(triton.cdiv(axes["v"], block_v), h, sequences)](
        S, q, k, v, g, A, dt_bias, bounds, slots, fresh, places, scratch, o, KeyStrides(*strides(S, 3)), of_q, of_k,
        PackedHeadStrides(*strides(v, 2)), of_g, of_scratch, PackedHeadStrides(*strides(o, 2)), *strides(dt_bias, 1),
        t, sequences, shape[0], V=axes["v"], BLOCK_V=block_v, STAGES=num_stages, num_warps=num_warps, **common,
    )  # fmt: skip
    return o


def tile(products: Products, device: torch.device) -> tuple[int, int, int]:
    """Tokens of a chunk, channels and warps of a program of the third launch: the fastest without spills
    (docs/explanation/tuning.md)."""
    row = H200["delta_chunk_scan"]
    if products == "fp32" or _halves_only(device):
        return row["chunk"], row["block_v"], row["warps"]
    return row["rounded_chunk"], row["rounded_block_v"], row["rounded_warps"]


def stages(k: int, by_channel: bool, rounded: bool) -> int:
    """Chunks of the third launch in flight: the most that fit the shared memory of an H200, up to 256 channels k;
    `by_channel` are chunks of 64 tokens with a gate per channel, which take one fewer unless k is small and products are
    rounded."""
    wide = k > 128
    return H200["delta_chunk_scan"]["stages"] - wide - (by_channel and (wide or not rounded))


def _halves_only(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 10


def _check_chunk(chunk: int, device: torch.device) -> None:
    if chunk > 64:
        raise ParameterError(f"chunk is {chunk}; give 16, 32 or 64")
    if chunk > 32 and _halves_only(device):
        raise Unsupported(f"chunk is {chunk}; for sm_100 Triton 3.7.1 makes an empty kernel of the walk: give 16 or 32")


@triton.jit
def _log_decays(g, A, decay, bias, real, t, stride_g_t, i, in_k, CHANNEL: tl.constexpr):
    """g of tokens t, after its gate; 0 where they are not real. The pointer is that of the head."""
    if CHANNEL:
        there = real[:, None] & in_k[None, :]
        g_t = load_rows(g, t * stride_g_t, i, real, in_k).to(tl.float32)
    else:
        there = real
        g_t = tl.load(g + t * stride_g_t, mask=real, other=0.0).to(tl.float32)
    if A is not None:
        g_t = decay * softplus(g_t + bias)
    return tl.where(there, g_t, 0.0)


@triton.jit
def _halves_kernel(
    q, k, g, beta, A, dt_bias, bounds, slots, scratch, stride_q, stride_k, stride_g, stride_beta, stride_T, stride_bias_h,
    tokens, sequences, scale, eps,
    K: tl.constexpr, HEADS_PER_KEY: tl.constexpr, CHANNEL: tl.constexpr, ROUND: tl.constexpr, L2_NORM: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK_B: tl.constexpr, SPLIT: tl.constexpr, BLOCK_K: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    c, h = tl.program_id(1).to(tl.int64) // (CHUNK // HALF), tl.program_id(0).to(tl.int64)
    b, start, end = chunk_place(bounds, c, sequences, tokens, CHUNK, BLOCK_B)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b, mask=b >= 0, other=-1).to(tl.int64)
    if slot >= 0:
        l, i = tl.arange(0, HALF), tl.arange(0, BLOCK_K).to(tl.int64)
        first = (tl.program_id(1) % (CHUNK // HALF)) * HALF
        t = start + first + l
        real, in_k = t < end, i < K
        decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, CHANNEL)
        group = h // HEADS_PER_KEY
        q_t = load_rows(q + group * stride_q.g, t * stride_q.t, i, real, in_k)
        k_t = load_rows(k + group * stride_k.g, t * stride_k.t, i, real, in_k)
        g_t = _log_decays(g + h * stride_g.h, A, decay, bias, real, t, stride_g.t, i, in_k, CHANNEL)
        beta_t = tl.load(beta + h * stride_beta.h + t * stride_beta.t, mask=real, other=0.0).to(tl.float32)
        if A is not None:
            beta_t = sigmoid(beta_t)
        G = tl.cumsum(g_t, axis=0)  # (1)
        r_q, r_k = norms(q_t, scale, eps, L2_NORM), norms(k_t, 1.0, eps, L2_NORM)
        before, up_to = l[:, None] > l[None, :], l[:, None] >= l[None, :]
        coupling = beta_t[:, None] * scores(k_t, r_k, G, k_t, r_k, G, before, HALF, CHANNEL)
        T = substituted(coupling, tl.where(l[:, None] == l[None, :], 1.0, 0.0), HALF) * beta_t[None, :]  # (2)
        of_chunk = scratch + c * stride_T.c + h * stride_T.h
        at = of_chunk + (first + l)[:, None] * CHUNK + (first + l)[None, :]
        tl.store(at, T)
        tl.store(at + CHUNK * CHUNK, scores(q_t, r_q, G, k_t, r_k, G, up_to, HALF, CHANNEL))
        tl.store(of_chunk + 2 * CHUNK * CHUNK + first + l, r_k)
        tl.store(of_chunk + 2 * CHUNK * CHUNK + CHUNK + first + l, r_q)


@triton.jit
def _join_kernel(
    q, k, g, A, dt_bias, bounds, slots, scratch, stride_q, stride_k, stride_g, stride_T, stride_bias_h, tokens, sequences,
    K: tl.constexpr, HEADS_PER_KEY: tl.constexpr, CHANNEL: tl.constexpr, ROUND: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK_B: tl.constexpr, SPLIT: tl.constexpr, BLOCK_K: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    c, h = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64)
    b, start, end = chunk_place(bounds, c, sequences, tokens, CHUNK, BLOCK_B)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b, mask=b >= 0, other=-1).to(tl.int64)
    if slot >= 0:
        l, i = tl.arange(0, HALF), tl.arange(0, BLOCK_K).to(tl.int64)
        t = start + l
        in_a, in_b, in_k = t < end, t + HALF < end, i < K
        decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, CHANNEL)
        at_q, at_k = q + (h // HEADS_PER_KEY) * stride_q.g, k + (h // HEADS_PER_KEY) * stride_k.g
        at_g = g + h * stride_g.h
        k_a = load_rows(at_k, t * stride_k.t, i, in_a, in_k)
        k_b = load_rows(at_k, (t + HALF) * stride_k.t, i, in_b, in_k)
        q_b = load_rows(at_q, (t + HALF) * stride_q.t, i, in_b, in_k)
        g_a = _log_decays(at_g, A, decay, bias, in_a, t, stride_g.t, i, in_k, CHANNEL)
        g_b = _log_decays(at_g, A, decay, bias, in_b, t + HALF, stride_g.t, i, in_k, CHANNEL)
        G_a, G_b = tl.cumsum(g_a, axis=0), tl.cumsum(g_b, axis=0)  # (1)
        total = last(G_a, HALF - 1)
        if CHANNEL:
            G_b += total[None, :]
        else:
            G_b += total
        of_chunk = scratch + c * stride_T.c + h * stride_T.h
        at_r = of_chunk + 2 * CHUNK * CHUNK + l
        r_a, r_b, r_q = tl.load(at_r), tl.load(at_r + HALF), tl.load(at_r + HALF + CHUNK)
        at_T = of_chunk + l[:, None] * CHUNK + l[None, :]
        T_a, T_b = tl.load(at_T), tl.load(at_T + HALF * CHUNK + HALF)
        seen = (l[:, None] >= 0) & (l[None, :] >= 0)
        between = scores(k_b, r_b, G_b, k_a, r_a, G_a, seen, HALF, CHANNEL)
        tl.store(at_T + HALF * CHUNK, dot_both(T_b, dot_both(-between, T_a, SPLIT, ROUND), SPLIT, ROUND))  # (6)
        tl.store(at_T + HALF, tl.zeros_like(T_a))
        at_P = at_T + CHUNK * CHUNK
        tl.store(at_P + HALF * CHUNK, scores(q_b, r_q, G_b, k_a, r_a, G_a, seen, HALF, CHANNEL))
        tl.store(at_P + HALF, tl.zeros_like(T_a))


@triton.jit
def _chunk_walk_kernel(
    S, q, k, v, g, A, dt_bias, bounds, slots, fresh, places, scratch, o,
    stride_S, stride_q, stride_k, stride_v, stride_g, stride_T, stride_o, stride_bias_h, tokens, sequences, chunks,
    K: tl.constexpr, HEADS_PER_KEY: tl.constexpr, CHANNEL: tl.constexpr, ROUND: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK_B: tl.constexpr, SPLIT: tl.constexpr, BLOCK_K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        start, end, first, count = sequence_place(bounds, b, sequences, tokens, chunks, CHUNK, BLOCK_B)
        l, i = tl.arange(0, CHUNK), tl.arange(0, BLOCK_K).to(tl.int64)
        j = tl.program_id(0).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
        in_k, in_v = i < K, j < V
        inside = in_k[:, None] & in_v[None, :]
        at_S = S + h * stride_S.h + i[:, None] * stride_S.k + j[None, :]
        held = inside
        if fresh is not None:
            held = inside & (tl.load(fresh + b) == 0)
        state = tl.load(at_S + slot * stride_S.s, mask=held, other=0.0).to(tl.float32)
        decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, CHANNEL)
        group = h // HEADS_PER_KEY
        at_T = scratch + first * stride_T.c + h * stride_T.h + l[:, None] * CHUNK + l[None, :]
        at_r = scratch + first * stride_T.c + h * stride_T.h + 2 * CHUNK * CHUNK + l
        for c in tl.range(0, count, num_stages=STAGES):
            t = start + c * CHUNK + l
            real = t < end
            g_t = _log_decays(g + h * stride_g.h, A, decay, bias, real, t, stride_g.t, i, in_k, CHANNEL)
            G = tl.cumsum(g_t, axis=0)  # (1)
            k_t = load_rows(k + group * stride_k.g, t * stride_k.t, i, real, in_k)
            v_t = load_rows(v + h * stride_v.h, t * stride_v.t, j, real, in_v).to(tl.float32)
            r_k = tl.load(at_r + c * stride_T.c)
            R = v_t - from_state(k_t, r_k, G, state, CHANNEL, SPLIT, ROUND)
            U = dot_both(tl.load(at_T + c * stride_T.c), R, SPLIT, ROUND)  # (3)
            q_t = load_rows(q + group * stride_q.g, t * stride_q.t, i, real, in_k)
            o_t = from_state(q_t, tl.load(at_r + c * stride_T.c + CHUNK), G, state, CHANNEL, SPLIT, ROUND)
            o_t += dot_both(tl.load(at_T + c * stride_T.c + CHUNK * CHUNK), U, SPLIT, ROUND)  # (4)
            at_o = o + t[:, None] * stride_o.t + h * stride_o.h + j[None, :]
            tl.store(at_o, o_t.to(o.dtype.element_ty), mask=real[:, None] & in_v[None, :])
            newest = tl.minimum(end - start - c * CHUNK, CHUNK) - 1
            state = state_after(state, k_t, r_k, G, last(G, newest), U, CHANNEL, SPLIT, ROUND)  # (5)
            if places is not None:
                place = tl.load(places + first + c).to(tl.int64)
                tl.store(at_S + place * stride_S.s, state.to(S.dtype.element_ty), mask=inside & (place >= 0))
        tl.store(at_S + slot * stride_S.s, state.to(S.dtype.element_ty), mask=inside)
