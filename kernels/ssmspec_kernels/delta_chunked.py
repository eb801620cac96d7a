"""The gated delta rule, a window of 1 to 32 tokens through matrix products and a triangular solve (WY, or UT, transform).

    G_i  = sum of g up to i                                                                              (1)
    A_ij = beta_i scores(k)_ij    for j < i, else 0             `scores`, `decayed`: see `delta_window`  (2)
    M    = (I + A)^-1 diag(beta),   P = scores(q) M             once for all channels                    (3)
    R    = V - decayed(k) S,        o = decayed(q) S + P R                                               (4)
    U    = M R                                                  what each token writes                   (5)
    S'   = diag(exp G_T) S + sum_j diag(exp(G_T - G_j)) k^_j u_j^T                                       (6)

No token waits for a state: the state meets all tokens in one product for the keys and one for the queries, in fp32 (`dots`).
The solve knows no channel of v, so that it is made once for the tiles that a program walks. A no-op token has g = 0 and
q = k = v = 0, so that nothing is written whatever its beta.

A program is one warp and owns some tiles of v channels of one value head of one row, with all of k. It reads each tile of
the state once and writes it at most once, whatever the number of tokens. Layout: S (s, h, k, v), as in `delta_scan`; a lane
loads the state as the left operand of the products (`delta_operand`). Bound by the bytes of the state for few tokens, and by
the latency of (1) to (3), which a program works through before it has use for a state. So where many rows come, in bf16 and
with a gate per head, (1) to (3) have a launch of their own (`delta_solved`), and (4) to (6) another (`delta_held`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from .delta_held import launch_held
from .delta_inputs import check_inputs, gates, load_gate_params
from .delta_operand import add_dots, load_state, rows, store_state, unrows
from .delta_scan import traffic_bytes
from .delta_solved import Solved, launch_solve, scratch, takes
from .delta_window import check_one_type, last, scores, substituted
from .dots import dot_both, dot_inputs, dot_left
from .launch import FLOATS, overlapped, strides

__all__ = ["delta_chunked", "traffic_bytes"]

LONGEST = 32


def delta_chunked(
    S: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    A: Tensor | None = None,
    dt_bias: Tensor | None = None,
    l2_norm: bool = True,
    scale: float | None = None,
    eps: float = 1e-6,
    slots: Tensor | None = None,
    live: Tensor | None = None,
    write_state: bool = True,
    out: Tensor | None = None,
    held: bool | None = None,
    solved: Solved | None = None,
    tiles: tuple[int, int, int] | None = None,
) -> Tensor:
    """Advance the states S[slots] by a window of tokens, in place, and return the outputs (b, t, h, v): (1) to (6).

    The arguments are those of `delta_scan`; q, k and v have one type. `held` chooses two launches or one (None: as measured);
    `solved` is what lies between the two (None: it is made).

    Raises: ShapeMismatch, PrecisionError, ParameterError (more than 32 tokens, or two launches for what they do not take),
    before anything is written.
    """
    more = ("live", live, "b t", (torch.bool,)), ("out", out, "b t h v", FLOATS)
    axes, scale = check_inputs(S, q, k, v, g, beta, A, dt_bias, slots, scale, eps, *more)
    check_one_type(q, k, v)
    t = axes["t"]
    if t > LONGEST:
        raise ParameterError(f"the window holds {t} tokens; a launch takes up to {LONGEST}: cut it, or use delta_scan")
    o = torch.empty_like(v) if out is None else out
    launch_window(
        S, q, k, v, g, beta, A, dt_bias, slots, live, None, o, l2_norm, scale, eps, write_state, held, solved, tiles
    )  # fmt: skip
    return o


def launch_window(
    S: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A: Tensor | None,
    dt_bias: Tensor | None,
    slots: Tensor | None,
    live: Tensor | None,
    ancestors: Tensor | None,
    o: Tensor,
    l2_norm: bool,
    scale: float,
    eps: float,
    write_state: bool,
    held: bool | None,
    solved: Solved | None,
    tiles: tuple[int, int, int] | None,
) -> None:
    """Launch what there is for a window, or for a tree where `ancestors` came, on arguments that were checked.

    Raises: ParameterError (two launches for what they do not take), before anything is written.
    """
    (b, t, groups, width), (h, channels) = q.shape, v.shape[2:]
    if held and not takes(q, g):
        raise ParameterError(
            f"held came as True for {t} tokens of {width} channels in {q.dtype} with gates {tuple(g.shape)}; two launches "
            "take up to 16 tokens of 128 channels in bf16 with a gate per head: leave it out"
        )
    if takes(q, g) and tiles is None and (two_launches(S, b * h) if held is None else held):
        solved = solved or scratch(b, h, q.device)
        live = live if ancestors is None else ancestors.diagonal(dim1=1, dim2=2)
        launch_solve(q, k, g, beta, A, dt_bias, slots, live, ancestors, l2_norm, scale, eps, solved)
        launch_held(S, q, k, v, slots, live, write_state, solved, o)
        return
    wide, program, stages = tiles or tile(b * h, write_state)
    each = triton.cdiv(min(program, triton.next_power_of_2(channels)), 8 * wide)
    block_k = max(16, triton.next_power_of_2(width))
    delta_window_kernel[(triton.cdiv(channels, each * 8 * wide), h, b)](
        S, q, k, v, g, beta, A, dt_bias, slots, live, ancestors, o,
        *strides(S, 2), *strides(q, 3), *strides(k, 3), *strides(v, 3), *strides(g, 3), *strides(beta, 3),
        *strides(o, 3), *strides(live, 2), *strides(ancestors, 3), *strides(dt_bias, 1), scale, eps,
        T=t, K=width, V=channels, ROW=S.stride(2), HEADS_PER_KEY=h // groups, CHANNEL=g.dim() == 4, L2_NORM=l2_norm,
        WRITE_STATE=write_state, SPLIT=q.dtype == torch.bfloat16, BLOCK_T=max(16, triton.next_power_of_2(t)),
        PART=min(32, block_k), PARTS=triton.cdiv(block_k, 32), WIDE=wide, TILES=each, STAGES=stages, num_warps=1,
        **overlapped(S.device),
    )  # fmt: skip


def two_launches(S: Tensor, programs: int) -> bool:
    """Whether two launches are faster: for many heads of rows on sm_90, as measured on an H200."""
    other = S.is_cuda and torch.cuda.get_device_capability(S.device) != (9, 0)
    return not other and programs >= 128


def tile(programs: int, write_state: bool) -> tuple[int, int, int]:
    """Channels of v that a lane loads at once, channels of a program, and stages of its loop: as measured on an H200.

    Few rows take one tile a program; a state that is written stays in registers, so that its tiles are small.
    """
    if programs <= 256:
        return 2, 16, 1
    return (2, 64, 2) if write_state or programs <= 1024 else (4, 128, 2)


@triton.jit
def delta_window_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, live, ancestors, o,
    stride_S_s, stride_S_h, stride_q_b, stride_q_t, stride_q_g, stride_k_b, stride_k_t, stride_k_g,
    stride_v_b, stride_v_t, stride_v_h, stride_g_b, stride_g_t, stride_g_h, stride_beta_b, stride_beta_t, stride_beta_h,
    stride_o_b, stride_o_t, stride_o_h, stride_live_b, stride_live_t, stride_anc_b, stride_anc_t, stride_anc_j,
    stride_bias_h, scale, eps,
    T: tl.constexpr, K: tl.constexpr, V: tl.constexpr, ROW: tl.constexpr, HEADS_PER_KEY: tl.constexpr,
    CHANNEL: tl.constexpr, L2_NORM: tl.constexpr, WRITE_STATE: tl.constexpr, SPLIT: tl.constexpr, BLOCK_T: tl.constexpr,
    PART: tl.constexpr, PARTS: tl.constexpr, WIDE: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot >= 0:
        BLOCK_V: tl.constexpr = 8 * WIDE
        t = tl.arange(0, BLOCK_T).to(tl.int64)
        real = t < T
        if live is not None:
            real &= tl.load(live + b * stride_live_b + t * stride_live_t, mask=t < T, other=0) != 0
        if ancestors is not None:
            at_anc = ancestors + b * stride_anc_b
            real &= tl.load(at_anc + t * (stride_anc_t + stride_anc_j), mask=t < T, other=0) != 0
            at_anc += t[:, None] * stride_anc_t + t[None, :] * stride_anc_j
            sees = tl.load(at_anc, mask=real[:, None] & real[None, :], other=0) != 0
        else:
            sees = (t[:, None] >= t[None, :]) & real[:, None] & real[None, :]
        same = t[:, None] == t[None, :]
        newest = T - 1
        if live is not None:
            newest = tl.max(tl.where(real, t, -1), axis=0)
        at_q = q + b * stride_q_b + (h // HEADS_PER_KEY) * stride_q_g + t[:, None] * stride_q_t
        at_k = k + b * stride_k_b + (h // HEADS_PER_KEY) * stride_k_g + t[:, None] * stride_k_t
        at_g = g + b * stride_g_b + h * stride_g_h + t * stride_g_t
        beta_t = tl.load(beta + b * stride_beta_b + h * stride_beta_h + t * stride_beta_t, mask=real, other=0.0).to(
            tl.float32
        )
        qs, ks, gs = (), (), ()
        r_q, r_k = tl.zeros([BLOCK_T], tl.float32), tl.zeros([BLOCK_T], tl.float32)
        for part in tl.static_range(PARTS):
            i = part * PART + tl.arange(0, PART)
            of_k = real[:, None] & (i < K)[None, :]
            q_t = tl.load(at_q + i[None, :], mask=of_k, other=0.0)
            k_t = tl.load(at_k + i[None, :], mask=of_k, other=0.0)
            qs += (q_t,)  # type: ignore[assignment]
            ks += (k_t,)  # type: ignore[assignment]
            r_q += tl.sum(q_t.to(tl.float32) * q_t.to(tl.float32), axis=1)
            r_k += tl.sum(k_t.to(tl.float32) * k_t.to(tl.float32), axis=1)
            if CHANNEL:
                decay, bias = load_gate_params(A, dt_bias, h, i, stride_bias_h, i < K, True)
                g_t = tl.load(at_g[:, None] + i[None, :], mask=of_k, other=0.0).to(tl.float32)
                g_t, formed = gates(g_t, beta_t, decay, bias, A)
                gs += (tl.where(of_k, g_t, 0.0),)  # type: ignore[assignment]
        if L2_NORM:
            r_q, r_k = scale * tl.rsqrt(r_q + eps), tl.rsqrt(r_k + eps)
        else:
            r_q, r_k = 0.0 * r_q + scale, 0.0 * r_k + 1.0
        to_q = tl.zeros([BLOCK_T, BLOCK_T], tl.float32)
        to_k = tl.zeros([BLOCK_T, BLOCK_T], tl.float32)
        Gs = ()
        if CHANNEL:
            beta_t = formed
            for part in tl.static_range(PARTS):
                G = cumulated(gs[part], sees, ancestors is not None)  # (1)
                to_q += scores(qs[part], r_q, G, ks[part], r_k, G, sees, T, True)
                to_k += scores(ks[part], r_k, G, ks[part], r_k, G, sees, T, True)
                Gs += (G,)  # type: ignore[assignment]
        else:
            decay, bias = load_gate_params(A, dt_bias, h, t, stride_bias_h, real, False)
            g_t, beta_t = gates(tl.load(at_g, mask=real, other=0.0).to(tl.float32), beta_t, decay, bias, A)
            g_t = tl.where(real, g_t, 0.0)
            G = cumulated(g_t, sees, ancestors is not None)  # (1)
            for part in tl.static_range(PARTS):
                to_q += dot_inputs(qs[part], tl.trans(ks[part]))
                to_k += dot_inputs(ks[part], tl.trans(ks[part]))
            weight = tl.exp(tl.where(sees, G[:, None] - G[None, :], float("-inf"))) * r_k[None, :]
            to_q *= weight * r_q[:, None]
            to_k *= weight * r_k[:, None]
            from_q, from_k = (r_q * tl.exp(G))[None, :], (r_k * tl.exp(G))[None, :]
            total = last(G, newest)
            to_state = (r_k * tl.exp(total - G))[None, :]
        coupling = tl.where(same, 0.0, to_k) * beta_t[:, None]  # (2)
        M = substituted(coupling, tl.where(same, beta_t[None, :], 0.0), T)
        P = tl.trans(dot_both(to_q, M, SPLIT))  # (3)
        M = tl.trans(M)
        at_S = S + slot * stride_S_s + h * stride_S_h
        at = tl.arange(0, 8)[None, :, None] * WIDE + tl.arange(0, WIDE)[None, None, :]
        at_v = v + b * stride_v_b + h * stride_v_h + t[:, None, None] * stride_v_t + at
        at_o = o + b * stride_o_b + h * stride_o_h + t[:, None, None] * stride_o_t + at
        for one in tl.range(0, TILES, num_stages=STAGES):
            j = (tl.program_id(0) * TILES + one) * BLOCK_V
            v_t = tl.load(at_v + j, mask=real[:, None, None] & (j + at < V), other=0.0)
            tiles = ()
            for part in tl.static_range(PARTS):
                tiles += (load_state(at_S, part * PART, j, K, V, ROW, PART, WIDE),)  # type: ignore[assignment]
            o_t = tl.zeros([BLOCK_V, BLOCK_T], tl.float32)
            read = tl.zeros([BLOCK_V, BLOCK_T], tl.float32)
            for part in tl.static_range(PARTS):
                if CHANNEL:
                    decayed = tl.exp(Gs[part])
                    o_t += dot_both(tiles[part], tl.trans(qs[part].to(tl.float32) * r_q[:, None] * decayed), SPLIT)
                    read += dot_both(tiles[part], tl.trans(ks[part].to(tl.float32) * r_k[:, None] * decayed), SPLIT)
                else:
                    o_t, read = add_dots(o_t, read, tiles[part], tl.trans(qs[part]), tl.trans(ks[part]))
            if not CHANNEL:
                o_t, read = from_q * o_t, from_k * read
            R = rows(v_t, WIDE).to(tl.float32) - read
            o_t = unrows((o_t + dot_both(R, P, SPLIT)).to(o.dtype.element_ty), WIDE)  # (4)
            tl.store(at_o + j, o_t, mask=(t < T)[:, None, None] & (j + at < V))
            if WRITE_STATE:
                U = dot_both(R, M, SPLIT)  # (5)
                if not CHANNEL:
                    U *= to_state
                for part in tl.static_range(PARTS):
                    if CHANNEL:
                        total = last(Gs[part], newest)[None, :]
                        kept = ks[part].to(tl.float32) * r_k[:, None] * tl.exp(total - Gs[part])
                        tile = tl.exp(total) * tiles[part] + dot_both(U, kept, SPLIT)
                    else:
                        tile = tl.exp(total) * tiles[part] + dot_left(U, ks[part])  # (6)
                    store_state(at_S, tile, part * PART, j, K, V, ROW, PART, WIDE)


@triton.jit
def cumulated(g, sees, TREE: tl.constexpr):
    """(1): g (t) or (t, k) summed over the tokens that each one sees."""
    if not TREE:
        G = tl.cumsum(g, axis=0)
    elif len(g.shape) == 1:
        G = tl.sum(tl.where(sees, g[None, :], 0.0), axis=1)
    else:
        G = tl.dot(sees.to(tl.float32), g, input_precision="ieee")
    return G
