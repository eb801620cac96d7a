"""The gated delta rule, a window of 1 to 32 tokens through matrix products and a triangular solve (WY, or UT, transform).

    G_i  = sum of g up to i                                                                              (1)
    A_ij = beta_i scores(k)_ij    for j < i, else 0             `scores`, `decayed`: see `delta_window`  (2)
    M    = (I + A)^-1 diag(beta),   P = scores(q) M             once for all channels                    (3)
    R    = V - decayed(k) S,        o = decayed(q) S + P R                                               (4)
    U    = M R                                                  what each token writes                   (5)
    S'   = diag(exp G_T) S + sum_j diag(exp(G_T - G_j)) k^_j u_j^T                                       (6)

No token waits for a state: the state meets all tokens in one product for the keys and one for the queries, in fp32 (`dots`).
The solve does not depend on the channels of v, so it is done once for all tiles of a program. A no-op token has g = 0 and
q = k = v = 0, so that nothing is written, whatever its beta.

A program is one warp and owns some tiles of v channels of one value head of one row, with all of k. It reads each tile of
the state once and writes it at most once, for any number of tokens. Layout: S (s, h, k, v), as in `delta_scan`; a lane
loads the state as the left operand of the products (`delta_operand`). Bound by the bytes of the state for few tokens, and by
the latency of (1) to (3), which a program computes before it needs a state. So for many rows, in bf16 and
with a gate per head, (1) to (3) have their own launch (`delta_solve`), and (4) to (6) another (`delta_apply`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..launch import overlapped, strides
from ..row import Axes, Live, Slots, launcher
from ..shared.dots import dot_both, dot_inputs, dot_left
from ..shared.strides import MaskStrides, TokenStrides
from ..shared.tree_nodes import real_nodes, seen_nodes
from ..shared.tuning import H200
from . import delta_inputs as delta
from .delta_apply import launch_apply
from .delta_inputs import check_inputs, gates, load_gate_params, window_strides
from .delta_operand import add_dots, load_state, rows, store_state, unrows
from .delta_scan import traffic_bytes
from .delta_solve import Solved, launch_solve, scratch, supports
from .delta_window import check_one_type, last, scores, substituted

__all__ = ["delta_chunked", "traffic_bytes"]

LONGEST = 32


@launcher
def delta_chunked(
    axes: Axes,
    S: delta.State,
    q: delta.Keys,
    k: delta.Keys,
    v: delta.Values,
    g: delta.Gates,
    beta: delta.Strengths,
    *,
    A: delta.Decay | None = None,
    dt_bias: delta.GateBias | None = None,
    l2_norm: bool = True,
    scale: float | None = None,
    eps: float = 1e-6,
    slots: Slots | None = None,
    live: Live | None = None,
    write_state: bool = True,
    out: delta.Outputs | None = None,
    two_launches: bool | None = None,
    solved: Solved | None = None,
    tiles: tuple[int, int, int] | None = None,
) -> Tensor:
    """Advances the states S[slots] by a window of tokens, in place, and returns the outputs (b, t, h, v): (1) to (6).

    The arguments are those of `delta_scan`; q, k and v have one type. `two_launches`: whether (1) to (3) are launched before
    the rest (None: if that is faster, as measured); `solved` is the buffer between the two (None: a new one).

    Raises: ShapeMismatch, PrecisionError, ParameterError (more than 32 tokens, or two launches for unsupported arguments),
    before anything is written.
    """
    scale = check_inputs(axes, A, dt_bias, slots, scale, eps)
    check_one_type(q, k, v)
    t = axes["t"]
    if t > LONGEST:
        raise ParameterError(f"the window holds {t} tokens; a launch takes up to {LONGEST}: cut it, or use delta_scan")
    o = torch.empty_like(v) if out is None else out
    launch_window(
        S, q, k, v, g, beta, A, dt_bias, slots, live, None, o, l2_norm, scale, eps, write_state, two_launches, solved, tiles
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
    two_launches: bool | None,
    solved: Solved | None,
    tiles: tuple[int, int, int] | None,
) -> None:
    """Launches the kernel or kernels for a window, or for a tree if `ancestors` is given, on checked arguments.

    Raises: ParameterError (two launches for unsupported arguments), before anything is written.
    """
    (b, t, groups, width), (h, channels) = q.shape, v.shape[2:]
    if two_launches and not supports(q, g):
        raise ParameterError(
            f"two_launches is True for {t} tokens of {width} channels in {q.dtype} with gates {tuple(g.shape)}; they take "
            "up to 16 tokens of 128 channels in bf16 with a gate per head: leave it out"
        )
    if supports(q, g) and tiles is None and (two_are_faster(S, b * h) if two_launches is None else two_launches):
        solved = solved or scratch(b, h, q.device)
        live = live if ancestors is None else ancestors.diagonal(dim1=1, dim2=2)
        launch_solve(q, k, g, beta, A, dt_bias, slots, live, ancestors, l2_norm, scale, eps, solved)
        launch_apply(S, q, k, v, slots, live, write_state, solved, o)
        return
    wide, program, stages = tiles or tile(b * h, write_state)
    each = triton.cdiv(min(program, triton.next_power_of_2(channels)), 8 * wide)
    block_k = max(16, triton.next_power_of_2(width))
    delta_window_kernel[(triton.cdiv(channels, each * 8 * wide), h, b)](
        S, q, k, v, g, beta, A, dt_bias, slots, live, ancestors, o,
        window_strides(S, q, k, v, g, beta, o, rows=True), TokenStrides(*strides(live, 2)),
        MaskStrides(*strides(ancestors, 3)), *strides(dt_bias, 1), scale, eps,
        T=t, K=width, V=channels, ROW=S.stride(2), HEADS_PER_KEY=h // groups, CHANNEL=g.dim() == 4, L2_NORM=l2_norm,
        WRITE_STATE=write_state, SPLIT=q.dtype == torch.bfloat16, BLOCK_T=max(16, triton.next_power_of_2(t)),
        PART=min(32, block_k), PARTS=triton.cdiv(block_k, 32), WIDE=wide, TILES=each, STAGES=stages, num_warps=1,
        **overlapped(S.device),
    )  # fmt: skip


def two_are_faster(S: Tensor, programs: int) -> bool:
    """Whether two launches are faster: for many heads of rows on sm_90, as measured on an H200."""
    other = S.is_cuda and torch.cuda.get_device_capability(S.device) != (9, 0)
    return not other and programs >= H200["delta_chunked"]["two_launches_from"]


def tile(programs: int, write_state: bool) -> tuple[int, int, int]:
    """Channels of v that a lane loads at once, channels of a program, and stages of its loop: chosen on an H200.

    With few rows a program has one tile; a state to be written stays in registers, so its tiles are small.
    """
    row = H200["delta_chunked"]
    if programs <= row["few_programs"]:
        return row["wide"], row["few_channels"], 1
    if write_state or programs <= row["programs"]:
        return row["wide"], row["channels"], row["stages"]
    return row["many_wide"], row["many_channels"], row["stages"]


@triton.jit
def _visible(live, ancestors, b, t, stride_live, stride_anc, T: tl.constexpr):
    """Which tokens are real, which tokens each one sees, the diagonal, and the last real token."""
    real = t < T
    if live is not None:
        real &= tl.load(live + b * stride_live.b + t * stride_live.t, mask=t < T, other=0) != 0
    if ancestors is not None:
        at_anc = ancestors + b * stride_anc.b
        real &= real_nodes(at_anc, t, t < T, stride_anc)
        sees = seen_nodes(at_anc, t, t, real, real, stride_anc)
    else:
        sees = (t[:, None] >= t[None, :]) & real[:, None] & real[None, :]
    same = t[:, None] == t[None, :]
    newest = T - 1
    if live is not None:
        newest = tl.max(tl.where(real, t, -1), axis=0)
    return real, sees, same, newest


@triton.jit
def _window_rows(
    at_q, at_k, at_g, beta_t, A, dt_bias, h, real, stride_bias_h, scale, eps, K: tl.constexpr, CHANNEL: tl.constexpr,
    L2_NORM: tl.constexpr, BLOCK_T: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """q and k in parts, their factors r, and for a gate per channel also g in parts, with beta after its gate."""
    formed = beta_t
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
    return qs, ks, gs, formed, r_q, r_k


@triton.jit
def _products_by_channel(qs, ks, gs, r_q, r_k, sees, T: tl.constexpr, TREE: tl.constexpr, BLOCK_T: tl.constexpr):
    """For a gate per channel: scores of queries and of keys against the keys, and G in parts (1)."""
    to_q = tl.zeros([BLOCK_T, BLOCK_T], tl.float32)
    to_k = tl.zeros([BLOCK_T, BLOCK_T], tl.float32)
    Gs = ()
    for part in tl.static_range(len(qs)):
        G = cumulated(gs[part], sees, TREE)  # (1)
        to_q += scores(qs[part], r_q, G, ks[part], r_k, G, sees, T, True)
        to_k += scores(ks[part], r_k, G, ks[part], r_k, G, sees, T, True)
        Gs += (G,)  # type: ignore[assignment]
    return to_q, to_k, Gs


@triton.jit
def _products_by_head(
    qs, ks, r_q, r_k, at_g, beta_t, A, dt_bias, h, t, real, sees, newest, stride_bias_h, TREE: tl.constexpr,
    BLOCK_T: tl.constexpr,
):  # fmt: skip
    """For a gate per head: the same scores, beta after its gate, and the factors of reads, decay and writes of the state."""
    to_q = tl.zeros([BLOCK_T, BLOCK_T], tl.float32)
    to_k = tl.zeros([BLOCK_T, BLOCK_T], tl.float32)
    decay, bias = load_gate_params(A, dt_bias, h, t, stride_bias_h, real, False)
    g_t, beta_t = gates(tl.load(at_g, mask=real, other=0.0).to(tl.float32), beta_t, decay, bias, A)
    g_t = tl.where(real, g_t, 0.0)
    G = cumulated(g_t, sees, TREE)  # (1)
    for part in tl.static_range(len(qs)):
        to_q += dot_inputs(qs[part], tl.trans(ks[part]))
        to_k += dot_inputs(ks[part], tl.trans(ks[part]))
    weight = tl.exp(tl.where(sees, G[:, None] - G[None, :], float("-inf"))) * r_k[None, :]
    to_q *= weight * r_q[:, None]
    to_k *= weight * r_k[:, None]
    from_q, from_k = (r_q * tl.exp(G))[None, :], (r_k * tl.exp(G))[None, :]
    total = last(G, newest)
    to_state = (r_k * tl.exp(total - G))[None, :]
    return to_q, to_k, beta_t, from_q, from_k, total, to_state


@triton.jit
def _from_tiles(
    tiles, qs, ks, r_q, r_k, Gs, from_q, from_k, CHANNEL: tl.constexpr, SPLIT: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Products of queries and of keys with a tile of the state."""
    o_t = tl.zeros([BLOCK_V, BLOCK_T], tl.float32)
    read = tl.zeros([BLOCK_V, BLOCK_T], tl.float32)
    for part in tl.static_range(len(tiles)):
        if CHANNEL:
            decayed = tl.exp(Gs[part])
            o_t += dot_both(tiles[part], tl.trans(qs[part].to(tl.float32) * r_q[:, None] * decayed), SPLIT)
            read += dot_both(tiles[part], tl.trans(ks[part].to(tl.float32) * r_k[:, None] * decayed), SPLIT)
        else:
            o_t, read = add_dots(o_t, read, tiles[part], tl.trans(qs[part]), tl.trans(ks[part]))
    if not CHANNEL:
        o_t, read = from_q * o_t, from_k * read
    return o_t, read


@triton.jit
def _write_tiles(
    S, tiles, ks, r_k, Gs, R, M, to_state, total, newest, j, K: tl.constexpr, V: tl.constexpr, ROW: tl.constexpr,
    CHANNEL: tl.constexpr, SPLIT: tl.constexpr, PART: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Store a tile of the state after the window (5) (6)."""
    U = dot_both(R, M, SPLIT)  # (5)
    if not CHANNEL:
        U *= to_state
    for part in tl.static_range(len(tiles)):
        if CHANNEL:
            total = last(Gs[part], newest)[None, :]
            kept = ks[part].to(tl.float32) * r_k[:, None] * tl.exp(total - Gs[part])
            tile = tl.exp(total) * tiles[part] + dot_both(U, kept, SPLIT)
        else:
            tile = tl.exp(total) * tiles[part] + dot_left(U, ks[part])  # (6)
        store_state(S, tile, part * PART, j, K, V, ROW, PART, WIDE)


@triton.jit
def delta_window_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, live, ancestors, o,
    stride, stride_live, stride_anc, stride_bias_h, scale, eps,
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
        real, sees, same, newest = _visible(live, ancestors, b, t, stride_live, stride_anc, T)
        at_q = q + b * stride.q.b + (h // HEADS_PER_KEY) * stride.q.g + t[:, None] * stride.q.t
        at_k = k + b * stride.k.b + (h // HEADS_PER_KEY) * stride.k.g + t[:, None] * stride.k.t
        at_g = g + b * stride.g.b + h * stride.g.h + t * stride.g.t
        beta_t = tl.load(beta + b * stride.beta.b + h * stride.beta.h + t * stride.beta.t, mask=real, other=0.0).to(
            tl.float32
        )
        qs, ks, gs, formed, r_q, r_k = _window_rows(
            at_q, at_k, at_g, beta_t, A, dt_bias, h, real, stride_bias_h, scale, eps, K, CHANNEL, L2_NORM, BLOCK_T, PART,
            PARTS,
        )  # fmt: skip
        Gs, from_q, from_k, total, to_state = (), None, None, None, None
        if CHANNEL:
            beta_t = formed
            to_q, to_k, Gs = _products_by_channel(qs, ks, gs, r_q, r_k, sees, T, ancestors is not None, BLOCK_T)
        else:
            to_q, to_k, beta_t, from_q, from_k, total, to_state = _products_by_head(
                qs, ks, r_q, r_k, at_g, beta_t, A, dt_bias, h, t, real, sees, newest, stride_bias_h, ancestors is not None,
                BLOCK_T,
            )  # fmt: skip
        coupling = tl.where(same, 0.0, to_k) * beta_t[:, None]  # (2)
        M = substituted(coupling, tl.where(same, beta_t[None, :], 0.0), T)
        P = tl.trans(dot_both(to_q, M, SPLIT))  # (3)
        M = tl.trans(M)
        at_S = S + slot * stride.S.s + h * stride.S.h
        at = tl.arange(0, 8)[None, :, None] * WIDE + tl.arange(0, WIDE)[None, None, :]
        at_v = v + b * stride.v.b + h * stride.v.h + t[:, None, None] * stride.v.t + at
        at_o = o + b * stride.o.b + h * stride.o.h + t[:, None, None] * stride.o.t + at
        for one in tl.range(0, TILES, num_stages=STAGES):
            j = (tl.program_id(0) * TILES + one) * BLOCK_V
            v_t = tl.load(at_v + j, mask=real[:, None, None] & (j + at < V), other=0.0)
            tiles = ()
            for part in tl.static_range(PARTS):
                tiles += (load_state(at_S, part * PART, j, K, V, ROW, PART, WIDE),)  # type: ignore[assignment]
            o_t, read = _from_tiles(tiles, qs, ks, r_q, r_k, Gs, from_q, from_k, CHANNEL, SPLIT, BLOCK_T, BLOCK_V)
            R = rows(v_t, WIDE).to(tl.float32) - read
            o_t = unrows((o_t + dot_both(R, P, SPLIT)).to(o.dtype.element_ty), WIDE)  # (4)
            tl.store(at_o + j, o_t, mask=(t < T)[:, None, None] & (j + at < V))
            if WRITE_STATE:
                _write_tiles(
                    at_S, tiles, ks, r_k, Gs, R, M, to_state, total, newest, j, K, V, ROW, CHANNEL, SPLIT, PART, WIDE
                )  # fmt: skip


@triton.jit
def cumulated(g, sees, TREE: tl.constexpr):
    """(1): g (t) or (t, k) summed over the tokens that each token sees."""
    if not TREE:
        G = tl.cumsum(g, axis=0)
    elif len(g.shape) == 1:
        G = tl.sum(tl.where(sees, g[None, :], 0.0), axis=1)
    else:
        G = tl.dot(sees.to(tl.float32), g, input_precision="ieee")
    return G
