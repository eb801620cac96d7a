"""A window of the gated delta rule against a state that is held: the second of two launches, behind `delta_solved`.

With M, PM, from_q, from_k and to of `delta_solved`,

    Y_q = from_q (S^T q),   Y_k = from_k (S^T k)        in one product, the queries and the keys its rows    (1)
    o   = Y_q + PM (v - Y_k)                                                                                 (2)
    u   = M (v - Y_k)                                   what the window writes                               (3)
    S'  = exp(G_T) S + sum_j to_j k_j u_j^T                                                                  (4)

A program owns v channels of one value head of one row, with all of k, and asks for its tile before anything else, while the
first launch ends, which waited for all that was launched before. It holds
the tile in registers from (1) to (4): a state is read once, and written at most once, whatever the number of tokens, and
no element changes its lane. A warp holds 16 channels in the order in which a product of tensor cores has a left operand and
its sums: lane l holds rows r = l // 4 and r + 8, columns 2 (l % 4) and the next. So a tile (16 WARPS, PART) is loaded with

    row 16 w + 8 e + r  holds channel v = 16 w + 2 r + e,   column y holds channel k = y                     (5)

as pairs (8 bytes a lane). Values and outputs have the same rows. Bound by the bytes of the state.
"""

import triton
import triton.language as tl
from torch import Tensor

from .delta_solved import LONGEST, Solved, load_parts
from .dots import dot_cut, dot_cut_onto, split3
from .launch import overlapped, strides

PART, WARPS = 32, 4
"""Channels k of a product, and warps of a program: the fastest of 32, 64, 128 and 2, 4, 8 on an H200."""


def launch_held(
    S: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor | None,
    live: Tensor | None,
    write_state: bool,
    solved: Solved,
    o: Tensor,
) -> None:
    """(1) to (4) on arguments that were checked."""
    (b, t, groups, width), (h, channels) = q.shape, v.shape[2:]
    block_k = max(16, triton.next_power_of_2(width))
    part = min(PART, block_k)
    _delta_held_kernel[(triton.cdiv(channels, 16 * WARPS), h, b)](
        S, q, k, v, slots, live, solved.parts, solved.factors, o,
        *strides(S, 2), *strides(q, 3), *strides(k, 3), *strides(v, 3), *strides(o, 3), *strides(live, 2),
        *strides(solved.parts, 2), *strides(solved.factors, 2),
        T=t, K=width, V=channels, ROW=S.stride(2), HEADS_PER_KEY=h // groups, WRITE_STATE=write_state, BLOCK_T=LONGEST,
        PART=part, PARTS=block_k // part, WARPS=WARPS, num_warps=WARPS, **overlapped(S.device),
    )  # fmt: skip


@triton.jit
def _places(PART: tl.constexpr, WARPS: tl.constexpr):
    """Columns and channels of a tile as it is loaded, (PART / 4 WARPS 32, 2): pairs of channels, lane after lane (5)."""
    row = tl.arange(0, PART // 4 * WARPS * 32)
    n, w, r, c = row // (32 * WARPS), row // 32 % WARPS, row // 4 % 8, row % 4
    return (n // 2 * 8 + c * 2 + n % 2)[:, None], (w * 16 + r * 2)[:, None] + tl.arange(0, 2)[None, :]


@triton.jit
def _to_product(tile, PART: tl.constexpr, WARPS: tl.constexpr):
    """(16 WARPS, PART) of a tile as it is loaded."""
    tile = tl.permute(tl.reshape(tile, (PART // 8, 2, WARPS, 8, 4, 2)), (2, 5, 3, 0, 4, 1))
    return tl.reshape(tile, (16 * WARPS, PART))


@triton.jit
def _to_memory(tile, PART: tl.constexpr, WARPS: tl.constexpr):
    """The reverse."""
    tile = tl.permute(tl.reshape(tile, (WARPS, 2, 8, PART // 8, 4, 2)), (3, 5, 0, 2, 4, 1))
    return tl.reshape(tile, (PART // 4 * WARPS * 32, 2))


@triton.jit
def _halves(x):
    """x (v, 2 n) as its first and its last n columns."""
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@triton.jit
def _delta_held_kernel(
    S, q, k, v, slots, live, parts, factors, o,
    stride_S_s, stride_S_h, stride_q_b, stride_q_t, stride_q_g, stride_k_b, stride_k_t, stride_k_g,
    stride_v_b, stride_v_t, stride_v_h, stride_o_b, stride_o_t, stride_o_h, stride_live_b, stride_live_t,
    stride_parts_b, stride_parts_h, stride_factors_b, stride_factors_h,
    T: tl.constexpr, K: tl.constexpr, V: tl.constexpr, ROW: tl.constexpr, HEADS_PER_KEY: tl.constexpr,
    WRITE_STATE: tl.constexpr, BLOCK_T: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr, WARPS: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot < 0:
        if OVERLAP:
            tl.extra.cuda.gdc_wait()  # a launch that ends has waited for the one before
    else:
        BLOCK_V: tl.constexpr = 16 * WARPS
        WHOLE: tl.constexpr = K == PART * PARTS and V % BLOCK_V == 0
        j = tl.program_id(0).to(tl.int64) * BLOCK_V
        at_i, at_j = _places(PART, WARPS)
        at_S = S + slot * stride_S_s + h * stride_S_h + at_i.to(tl.int64) * ROW + (j + at_j)
        tiles = ()
        for part in tl.static_range(PARTS):
            if WHOLE:
                tile = tl.load(at_S + part * PART * ROW)
            else:
                inside = (part * PART + at_i < K) & (j + at_j < V)
                tile = tl.load(at_S + part * PART * ROW, mask=inside, other=0.0)
            tiles += (tile.to(tl.float32),)  # type: ignore[assignment]
        # The rows of the window: its queries, then its keys.
        row, t = tl.arange(0, 2 * BLOCK_T), tl.arange(0, BLOCK_T).to(tl.int64)
        is_key, t_x = row >= BLOCK_T, (row % BLOCK_T).to(tl.int64)
        t_v, j_v = _places(BLOCK_T, WARPS)
        t_v = t_v.to(tl.int64)
        real, real_x, real_v = t < T, t_x < T, t_v < T
        if live is not None:
            at_live = live + b * stride_live_b
            real &= tl.load(at_live + t * stride_live_t, mask=t < T, other=0) != 0
            real_x &= tl.load(at_live + t_x * stride_live_t, mask=t_x < T, other=0) != 0
            real_v &= tl.load(at_live + t_v * stride_live_t, mask=t_v < T, other=0) != 0
        at_q = q + b * stride_q_b + (h // HEADS_PER_KEY) * stride_q_g
        at_k = k + b * stride_k_b + (h // HEADS_PER_KEY) * stride_k_g
        at_x = tl.where(is_key[:, None], at_k + t_x[:, None] * stride_k_t, at_q + t_x[:, None] * stride_q_t)
        xs = ()
        for part in tl.static_range(PARTS):
            i = part * PART + tl.arange(0, PART)
            x = tl.load(at_x + i[None, :], mask=real_x[:, None] & (i < K)[None, :], other=0.0)
            xs += (x,)  # type: ignore[assignment]
        in_v = j + j_v < V
        at_v = v + b * stride_v_b + h * stride_v_h + t_v * stride_v_t + (j + j_v)
        v_t = tl.load(at_v, mask=real_v & in_v, other=0.0)
        if OVERLAP:
            tl.extra.cuda.gdc_wait()  # for what is solved; all else was there before that launch
        at_parts = parts + b * stride_parts_b + h * stride_parts_h
        at_factors = factors + b * stride_factors_b + h * stride_factors_h
        hi_M, mid_M, lo_M = load_parts(at_parts + row[:, None] * BLOCK_T + t[None, :], 2 * BLOCK_T * BLOCK_T)
        Y = tl.zeros([BLOCK_V, 2 * BLOCK_T], tl.float32)
        for part in tl.static_range(PARTS):
            hi, mid, lo = split3(_to_product(tiles[part], PART, WARPS))
            Y = dot_cut_onto(Y, hi, mid, lo, tl.trans(xs[part]))
        Y_q, Y_k = _halves(Y * tl.load(at_factors + row)[None, :])  # (1)
        hi, mid, lo = split3(_to_product(v_t, BLOCK_T, WARPS).to(tl.float32) - Y_k)
        Z = dot_cut(hi, mid, lo, tl.trans(hi_M), tl.trans(mid_M), tl.trans(lo_M), False)
        of_q, U = _halves(Z)  # (3)
        at_o = o + b * stride_o_b + h * stride_o_h + t_v * stride_o_t + (j + j_v)
        tl.store(at_o, _to_memory(Y_q + of_q, BLOCK_T, WARPS).to(o.dtype.element_ty), mask=(t_v < T) & in_v)  # (2)
        if WRITE_STATE:
            hi, mid, lo = split3(U * tl.load(at_factors + 2 * BLOCK_T + t)[None, :])
            left = tl.load(at_factors + 3 * BLOCK_T)
            for part in tl.static_range(PARTS):
                i = part * PART + tl.arange(0, PART)
                key = tl.load(at_k + t[:, None] * stride_k_t + i[None, :], mask=real[:, None] & (i < K)[None, :], other=0.0)
                tile = dot_cut_onto(left * _to_product(tiles[part], PART, WARPS), hi, mid, lo, key)  # (4)
                tile = _to_memory(tile, PART, WARPS).to(S.dtype.element_ty)
                if WHOLE:
                    tl.store(at_S + part * PART * ROW, tile)
                else:
                    inside = (part * PART + at_i < K) & (j + at_j < V)
                    tl.store(at_S + part * PART * ROW, tile, mask=inside)
