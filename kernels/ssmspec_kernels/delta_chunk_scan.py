"""The gated delta rule over long prompts: packed sequences, chunk by chunk, in two launches (UT transform).

    G_i  = sum of g from the first token of the chunk; r, decayed, scores as in `delta_window`            (1)
    A_ij = beta_i scores(k)_ij for j < i,   P_ij = scores(q)_ij for j <= i,   T = (I + A)^-1              (2)
    U    = T beta (v - decayed(k) S)                        what the tokens write                         (3)
    o    = decayed(q) S + P U                                                                             (4)
    S'   = diag(exp G_T) S + sum_j diag(exp(G_T - G_j)) k^_j u_j^T                                        (5)

(2) knows nothing of the state: the first launch forms T and P of all chunks at once. The second walks each sequence with a
tile of the state in registers, and between two chunks there are products only. T comes from forward substitution on the
identity. Everything between the launches is fp32, products are as accurate as fp32 (`dots`).

Layout: q, k (t, g, k), v (t, h, v), all sequences in one run; S (s, h, k, v), a pool that sequences reach through `slots`;
the scratch (c, h, 2, i, j) has T and P of each chunk (`packed_chunks`). Bound by the products, and by the walk of (5).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError, ShapeMismatch

from .delta_inputs import gates, load_gate_params
from .delta_window import carried, check_one_type, from_state, norms, scores, substituted
from .dots import dot_both
from .launch import FLOATS, INDICES, check_pool, divides, sizes, strides
from .packed_chunks import check_packed, chunk_place, most, packed_arguments, sequence_place
from .ssd_inputs import load_rows


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
    return run + 2 * sequences * h * k * v * state + 2 * chunks * h * 2 * chunk * chunk * 4


def scratch_shape(tokens: int, sequences: int, h: int, *, chunk: int = 32) -> tuple[int, int, int, int, int]:
    """The shape of the scratch (fp32) that a run needs."""
    return most(tokens, sequences, chunk), h, 2, chunk, chunk


def delta_chunk_scan(
    S: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    bounds: Tensor,
    *,
    A: Tensor | None = None,
    dt_bias: Tensor | None = None,
    l2_norm: bool = True,
    scale: float | None = None,
    eps: float = 1e-6,
    slots: Tensor | None = None,
    fresh: Tensor | None = None,
    places: Tensor | None = None,
    out: Tensor | None = None,
    scratch: Tensor | None = None,
    chunk: int = 32,
    block_v: int | None = None,
    num_warps: int = 4,
) -> Tensor:
    """The outputs (t, h, v) of a packed run, and in S[slots] the state after each sequence: equations (1) to (5).

    `g` (t, h) or (t, h, k) is a log decay, `beta` (t, h); with `A` (h) both come as projections (`delta_inputs`). Sequence b
    has the tokens bounds[b] .. bounds[b + 1] - 1; bounds never fall, and stay where a sequence is empty. Tokens outside, and
    those of a sequence with a negative slot, are neither read nor written. A sequence that is `fresh` (b) starts from zeros,
    whatever its slot holds. `places` (c) names a slot of S for the state after each chunk, in the order of
    `ssmspec_ref.packed.every` with blocks of `chunk` tokens; a negative one is not kept. No place may be the slot or a place
    of another sequence.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    channel = "t h k" if g.dim() == 3 else "t h"
    axes = sizes(
        [
            ("S", S, "s h k v", FLOATS),
            ("q", q, "t g k", FLOATS),
            ("k", k, "t g k", FLOATS),
            ("v", v, "t h v", FLOATS),
            ("g", g, channel, FLOATS),
            ("beta", beta, "t h", FLOATS),
            ("A", A, "h", (torch.float32,)),
            ("dt_bias", dt_bias, channel.removeprefix("t "), FLOATS),
            ("places", places, "c", INDICES),
            ("out", out, "t h v", FLOATS),
            *packed_arguments(bounds, slots, fresh),
        ]
    )
    t, groups, h = (axes[a] for a in "tgh")
    sequences = check_packed(axes, chunk)
    divides(groups, h)
    check_pool(axes["s"], sequences, slots)
    check_one_type(q, k, v)
    scale = axes["k"] ** -0.5 if scale is None else scale
    if not (scale > 0 and eps > 0):
        raise ParameterError(f"scale and eps came as {scale} and {eps}; give scale > 0 (or None) and eps > 0")
    if dt_bias is not None and (A is None or (dt_bias.stride(-1) != 1 and dt_bias.shape[-1] > 1)):
        raise ParameterError("dt_bias needs A, and stride 1 on its last axis; give both, or gates that are formed already")
    shape = scratch_shape(t, sequences, h, chunk=chunk)
    if places is not None and len(places) < shape[0]:
        raise ShapeMismatch(f"places hold {len(places)} entries, but the run may have {shape[0]} chunks; give one for each")
    if scratch is None:
        scratch = torch.empty(shape, dtype=torch.float32, device=S.device)
    elif tuple(scratch.shape) != shape or scratch.dtype != torch.float32 or not scratch.is_contiguous():
        raise ShapeMismatch(f"scratch came as {tuple(scratch.shape)} {scratch.dtype}, but {shape} in float32 is needed")
    o = torch.empty_like(v) if out is None else out
    block = block_v or 8
    common = {"K": axes["k"], "V": axes["v"], "HEADS_PER_KEY": h // groups, "CHANNEL": g.dim() == 3, "L2_NORM": l2_norm,
              "CHUNK": chunk, "BLOCK_B": triton.next_power_of_2(sequences), "SPLIT": q.dtype == torch.bfloat16,
              "BLOCK_K": max(16, triton.next_power_of_2(axes["k"])), "num_warps": num_warps}  # fmt: skip
    _chunk_solve_kernel[(h, shape[0])](
        q, k, g, beta, A, dt_bias, bounds, slots, scratch, *strides(q, 2), *strides(k, 2), *strides(g, 2),
        *strides(beta, 2), *strides(scratch, 2), *strides(dt_bias, 1), t, sequences, scale, eps, **common,
    )  # fmt: skip
    _chunk_walk_kernel[(triton.cdiv(axes["v"], block), h, sequences)](
        S, q, k, v, g, beta, A, dt_bias, bounds, slots, fresh, places, scratch, o, *strides(S, 3), *strides(q, 2),
        *strides(k, 2), *strides(v, 2), *strides(g, 2), *strides(beta, 2), *strides(scratch, 2), *strides(o, 2),
        *strides(dt_bias, 1), t, sequences, shape[0], scale, eps, BLOCK_V=block, **common,
    )  # fmt: skip
    return o


@triton.jit
def _formed_gates(
    g, beta, A, decay, bias, real, t, stride_g_t, stride_beta_t, i, in_k, CHANNEL: tl.constexpr
):  # fmt: skip
    """The gates of tokens t, formed; g is 0 where they are not real. The pointers are those of the head."""
    beta_t = tl.load(beta + t * stride_beta_t, mask=real, other=0.0).to(tl.float32)
    if CHANNEL:
        g_t = load_rows(g, t * stride_g_t, i, real, in_k).to(tl.float32)
        g_t, beta_t = gates(g_t, beta_t, decay, bias, A)
        g_t = tl.where(real[:, None] & in_k[None, :], g_t, 0.0)
    else:
        g_t = tl.load(g + t * stride_g_t, mask=real, other=0.0).to(tl.float32)
        g_t, beta_t = gates(g_t, beta_t, decay, bias, A)
        g_t = tl.where(real, g_t, 0.0)
    return g_t, beta_t


@triton.jit
def _chunk_solve_kernel(
    q, k, g, beta, A, dt_bias, bounds, slots, scratch, stride_q_t, stride_q_g, stride_k_t, stride_k_g,
    stride_g_t, stride_g_h, stride_beta_t, stride_beta_h, stride_T_c, stride_T_h, stride_bias_h,
    tokens, sequences, scale, eps,
    K: tl.constexpr, V: tl.constexpr, HEADS_PER_KEY: tl.constexpr, CHANNEL: tl.constexpr, L2_NORM: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK_B: tl.constexpr, SPLIT: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    c, h = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64)
    b, start, end = chunk_place(bounds, c, sequences, tokens, CHUNK, BLOCK_B)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b, mask=b >= 0, other=-1).to(tl.int64)
    if slot >= 0:
        l, i = tl.arange(0, CHUNK), tl.arange(0, BLOCK_K).to(tl.int64)
        t = start + l
        in_k = i < K
        decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, CHANNEL)
        group = h // HEADS_PER_KEY
        real = t < end
        q_t = load_rows(q + group * stride_q_g, t * stride_q_t, i, real, in_k)
        k_t = load_rows(k + group * stride_k_g, t * stride_k_t, i, real, in_k)
        g_t, beta_t = _formed_gates(
            g + h * stride_g_h, beta + h * stride_beta_h, A, decay, bias, real, t, stride_g_t, stride_beta_t, i, in_k, CHANNEL
        )
        G = tl.cumsum(g_t, axis=0)  # (1)
        r_q, r_k = norms(q_t, scale, eps, L2_NORM), norms(k_t, 1.0, eps, L2_NORM)
        before, up_to = l[:, None] > l[None, :], l[:, None] >= l[None, :]
        coupling = beta_t[:, None] * scores(k_t, r_k, G, k_t, r_k, G, before, CHUNK, CHANNEL)
        identity = tl.where(l[:, None] == l[None, :], 1.0, 0.0)
        at = scratch + c * stride_T_c + h * stride_T_h + l[:, None] * CHUNK + l[None, :]
        tl.store(at, substituted(coupling, identity, CHUNK))
        tl.store(at + CHUNK * CHUNK, scores(q_t, r_q, G, k_t, r_k, G, up_to, CHUNK, CHANNEL))  # (2)


@triton.jit
def _chunk_walk_kernel(
    S, q, k, v, g, beta, A, dt_bias, bounds, slots, fresh, places, scratch, o,
    stride_S_s, stride_S_h, stride_S_k, stride_q_t, stride_q_g, stride_k_t, stride_k_g, stride_v_t, stride_v_h,
    stride_g_t, stride_g_h, stride_beta_t, stride_beta_h, stride_T_c, stride_T_h, stride_o_t, stride_o_h, stride_bias_h,
    tokens, sequences, chunks, scale, eps,
    K: tl.constexpr, V: tl.constexpr, HEADS_PER_KEY: tl.constexpr, CHANNEL: tl.constexpr, L2_NORM: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK_B: tl.constexpr, SPLIT: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
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
        at_S = S + h * stride_S_h + i[:, None] * stride_S_k + j[None, :]
        held = inside
        if fresh is not None:
            held = inside & (tl.load(fresh + b) == 0)
        state = tl.load(at_S + slot * stride_S_s, mask=held, other=0.0).to(tl.float32)
        decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, in_k, CHANNEL)
        group = h // HEADS_PER_KEY
        at_T = scratch + first * stride_T_c + h * stride_T_h + l[:, None] * CHUNK + l[None, :]
        for c in tl.range(0, count, num_stages=1):
            t = start + c * CHUNK + l
            real = t < end
            g_t, beta_t = _formed_gates(
                g + h * stride_g_h, beta + h * stride_beta_h, A, decay, bias, real, t, stride_g_t, stride_beta_t,
                i, in_k, CHANNEL,
            )  # fmt: skip
            G = tl.cumsum(g_t, axis=0)  # (1)
            k_t = load_rows(k + group * stride_k_g, t * stride_k_t, i, real, in_k)
            v_t = load_rows(v + h * stride_v_h, t * stride_v_t, j, real, in_v).to(tl.float32)
            r_k = norms(k_t, 1.0, eps, L2_NORM)
            R = beta_t[:, None] * (v_t - from_state(k_t, r_k, G, state, CHANNEL, SPLIT))
            U = dot_both(tl.load(at_T + c * stride_T_c), R, SPLIT)  # (3)
            q_t = load_rows(q + group * stride_q_g, t * stride_q_t, i, real, in_k)
            o_t = from_state(q_t, norms(q_t, scale, eps, L2_NORM), G, state, CHANNEL, SPLIT)
            o_t += dot_both(tl.load(at_T + c * stride_T_c + CHUNK * CHUNK), U, SPLIT)  # (4)
            at_o = o + t[:, None] * stride_o_t + h * stride_o_h + j[None, :]
            tl.store(at_o, o_t.to(o.dtype.element_ty), mask=real[:, None] & in_v[None, :])
            state = carried(state, k_t, r_k, G, tl.sum(g_t, axis=0), U, CHANNEL, SPLIT)  # (5)
            if places is not None:
                place = tl.load(places + first + c).to(tl.int64)
                tl.store(at_S + place * stride_S_s, state.to(S.dtype.element_ty), mask=inside & (place >= 0))
        tl.store(at_S + slot * stride_S_s, state.to(S.dtype.element_ty), mask=inside)
