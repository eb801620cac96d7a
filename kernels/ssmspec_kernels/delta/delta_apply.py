"""A window of the gated delta rule with a state held in registers: the second of two launches, after `delta_solve`.

With M, PM, from_q, from_k and to of `delta_solve`,

    Y_q = from_q (S^T q),   Y_k = from_k (S^T k)        in one product, the queries and the keys its columns (1)
    o   = Y_q + PM (v - Y_k)                                                                                 (2)
    u   = M (v - Y_k)                                   what the window writes                               (3)
    S'  = exp(G_T) S + sum_j to_j k_j u_j^T                                                                  (4)

Up to 8 queries and 8 keys are the 16 columns of (1), and (2) (3) one product with both; more are 32. A program processes RUN
tiles of one value head of one row, each some channels v with all of k. It loads the first tile before anything else, while
the first launch ends, which itself waited for all earlier launches. It holds a tile in registers from (1) to (4): a state is
read once, and written at most once, for any number of tokens, and no element changes its lane. A warp holds 16 channels in
the layout of a tensor core product's left operand and of its sums: lane l holds rows r = l // 4 and r + 8, columns 2 (l % 4)
and the next. So a tile (16 WARPS, PART) is loaded with

    row 16 w + 8 e + r  holds channel v = 16 w + 2 r + e,   column y holds channel k = y                     (5)

as pairs (8 bytes per lane). Values and outputs have the same rows. Queries and keys are read once for the tiles of a run.
Layout: S (s, h, k, v), as in `delta_scan`.
Bound by the bytes of the state. A program of one warp was slower, because it reads half lines of memory; see
docs/explanation/tuning.md.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import overlapped, strides
from ..shared.dots import dot_cut, dot_cut_onto, split3
from ..shared.strides import GroupStrides, HeadStrides, RowStrides, SolvedStrides, TokenStrides
from ..shared.tuning import H200
from .delta_solve import LONGEST, Solved, load_parts

PART = H200["delta_apply"]["part"]
"""Channels k of a product: the fastest of 16, 32 and 64 on an H200."""


def tile(heads: int, tokens: int, write_state: bool) -> tuple[int, int]:
    """Warps of a program, of 16 channels each, and its run of tiles; `heads` counts heads of rows.

    Chosen on an H200 with the fence and the registers below; the times are in docs/explanation/tuning.md.
    """
    row = H200["delta_apply"]
    if tokens <= 8 or heads < row["written_from" if write_state else "read_from"]:
        return row["warps"], 1
    return row["many_warps" if write_state and heads >= row["many_written"] else "warps"], row["run"]


def registers(S: Tensor, tokens: int, write_state: bool) -> int | None:
    """The most registers of a lane: on sm_90 128 for up to 8 tokens with a write, so that 8 programs fit an SM, not 7
    (docs/explanation/tuning.md).
    """
    hopper = S.is_cuda and torch.cuda.get_device_capability(S.device) == (9, 0)
    return H200["delta_apply"]["registers"] if hopper and tokens <= 8 and write_state else None


def launch_apply(
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
    """(1) to (4) on checked arguments."""
    (b, t, groups, width), (h, channels) = q.shape, v.shape[2:]
    block_k, (warps, run) = max(16, triton.next_power_of_2(width)), tile(b * h, t, write_state)
    part, tiles = min(PART, block_k), triton.cdiv(channels, 16 * warps)
    _delta_apply_kernel[(triton.cdiv(tiles, run), h, b)](
        S, q, k, v, slots, live, *solved, o,
        RowStrides(*strides(S, 2)), GroupStrides(*strides(q, 3)), GroupStrides(*strides(k, 3)),
        HeadStrides(*strides(v, 3)), HeadStrides(*strides(o, 3)), TokenStrides(*strides(live, 2)),
        SolvedStrides(*strides(solved.parts, 2)), SolvedStrides(*strides(solved.factors, 2)),
        T=t, K=width, V=channels, ROW=S.stride(2), HEADS_PER_KEY=h // groups, WRITE_STATE=write_state,
        BLOCK_T=8 if t <= 8 else LONGEST, LONGEST=LONGEST, PART=part, PARTS=block_k // part, TILES=tiles, RUN=run,
        WARPS=warps, num_warps=warps, maxnreg=registers(S, t, write_state), **overlapped(S.device),
    )  # fmt: skip


@triton.jit
def _places(PART: tl.constexpr, WARPS: tl.constexpr):
    """Columns and channels of a tile as it is loaded, (PART / 4 WARPS 32, 2): pairs of channels, lane by lane (5)."""
    row = tl.arange(0, PART // 4 * WARPS * 32)
    n, w, r, c = row // (32 * WARPS), row // 32 % WARPS, row // 4 % 8, row % 4
    return (n // 2 * 8 + c * 2 + n % 2)[:, None], (w * 16 + r * 2)[:, None] + tl.arange(0, 2)[None, :]


@triton.jit
def _to_product(tile, PART: tl.constexpr, WARPS: tl.constexpr):
    """(16 WARPS, PART) of a tile as it is loaded, in fp32."""
    tile = tl.permute(tl.reshape(tile.to(tl.float32), (PART // 8, 2, WARPS, 8, 4, 2)), (2, 5, 3, 0, 4, 1))
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
def _is_live(live, t, stride_live_t, there):
    """Which tokens t are real. The sum, over one element, hides from the compiler that the mask has 8 bits: otherwise it
    chooses the layout of later products for operands of 8 bits, and moves them there by shuffles."""
    return tl.sum(tl.load(live + t * stride_live_t, mask=there, other=0).to(tl.int32)[:, None], axis=1) != 0


@triton.jit
def _load_tile(
    S, v, j, wanted, of_v, stride_v_t, K: tl.constexpr, V: tl.constexpr, ROW: tl.constexpr, BLOCK_T: tl.constexpr,
    PART: tl.constexpr, PARTS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """The tile from channel j on, in parts of k, and its values (5); zeros outside, or if not wanted."""
    at_i, at_j = _places(PART, WARPS)
    parts = ()
    for part in tl.static_range(PARTS):
        if K == PART * PARTS and V % (16 * WARPS) == 0:
            inside = wanted & (at_i >= 0)
        else:
            inside = wanted & (part * PART + at_i < K) & (j + at_j < V)
        at = S + part * PART * ROW + at_i.to(tl.int64) * ROW + (j + at_j)
        parts += (tl.load(at, mask=inside, other=0.0),)  # type: ignore[assignment]
    t, at_j = _places(16, WARPS)
    at_v = v + (t % BLOCK_T).to(tl.int64) * stride_v_t + (j + at_j)
    return parts, tl.load(at_v, mask=wanted & of_v & (j + at_j < V), other=0.0)


@triton.jit
def _real(live, b, t_x, t_y, t_v, key_y, stride_live, T: tl.constexpr, BLOCK_T: tl.constexpr):
    """Which rows, columns and values of the window belong to real tokens."""
    real_x, real_y, of_v = t_x < T, (t_y < T) & key_y, (t_v >= 16 - BLOCK_T) & (t_v % BLOCK_T < T)
    if live is not None:
        at_live = live + b * stride_live.b
        real_x &= _is_live(at_live, t_x, stride_live.t, real_x)
        real_y &= _is_live(at_live, t_y, stride_live.t, real_y)
        of_v &= tl.load(at_live + (t_v % BLOCK_T).to(tl.int64) * stride_live.t, mask=of_v, other=0) != 0
    return real_x, real_y, of_v


@triton.jit
def _load_rows(
    at_q, at_k, t_x, t_y, is_key, real_x, real_y, stride_q_t, stride_k_t, K: tl.constexpr, WRITE_STATE: tl.constexpr,
    PART: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Queries and keys part by part, and the keys alone where the state is written; the pointers are those of token 0."""
    at_x = tl.where(is_key[:, None], at_k + t_x[:, None] * stride_k_t, at_q + t_x[:, None] * stride_q_t)
    at_y = at_k + t_y[:, None] * stride_k_t
    xs, keys = (), ()
    for part in tl.static_range(PARTS):
        i = part * PART + tl.arange(0, PART)
        rows = tl.load(at_x + i[None, :], mask=real_x[:, None] & (i < K)[None, :], other=0.0)
        xs += (rows,)  # type: ignore[assignment]
        if WRITE_STATE:
            key = tl.load(at_y + i[None, :], mask=real_y[:, None] & (i < K)[None, :], other=0.0)
            keys += (key,)  # type: ignore[assignment]
    return xs, keys


@triton.jit
def _load_solved(
    parts, factors, x, is_key, t_y, key_y, stride_parts, stride_factors, b, h, WRITE_STATE: tl.constexpr,
    BLOCK_T: tl.constexpr, LONGEST: tl.constexpr,
):  # fmt: skip
    """The results of `delta_solve`: the parts of its matrix, and the factors of reads, writes and the decay."""
    row = tl.where(is_key, LONGEST, 0) + x % BLOCK_T
    at_M = parts + b * stride_parts.b + h * stride_parts.h + row[None, :] * LONGEST + t_y[:, None]
    hi_M, mid_M, lo_M = load_parts(at_M, key_y[:, None], 2 * LONGEST * LONGEST)
    at_factors = factors + b * stride_factors.b + h * stride_factors.h
    read = tl.load(at_factors + row)[None, :]
    to, left = 0.0, 0.0
    if WRITE_STATE:
        to = tl.load(at_factors + 2 * LONGEST + t_y)[None, :]
        left = tl.load(at_factors + 3 * LONGEST)
    return (hi_M, mid_M, lo_M), read, to, left


@triton.jit
def _outputs(
    tiles, xs, v_t, read, M, key_y, BLOCK_T: tl.constexpr, BLOCK_V: tl.constexpr, X: tl.constexpr, PART: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """Outputs and corrections of a tile: (1) to (3)."""
    hi_M, mid_M, lo_M = M
    Y = tl.zeros([BLOCK_V, X], tl.float32)
    for part in tl.static_range(len(tiles)):
        hi, mid, lo = split3(_to_product(tiles[part], PART, WARPS))
        Y = dot_cut_onto(Y, hi, mid, lo, tl.trans(xs[part]))
    Y *= read  # (1)
    v_j = _to_product(v_t, 16, WARPS)
    if BLOCK_T == 8:
        o_t = Y
        hi, mid, lo = split3(tl.where(key_y[None, :], v_j - Y, 0.0))
    else:
        o_t, Y_k = _halves(Y)
        hi, mid, lo = split3(v_j - Y_k)
    Z = dot_cut(hi, mid, lo, hi_M, mid_M, lo_M, False)
    if BLOCK_T == 8:
        of_q, U = Z, tl.where(key_y[None, :], Z, 0.0)
    else:
        of_q, U = _halves(Z)  # (3)
    return o_t + of_q, U


@triton.jit
def _write_tile(
    S, tiles, keys, U, to, left, j, K: tl.constexpr, V: tl.constexpr, ROW: tl.constexpr, PART: tl.constexpr,
    PARTS: tl.constexpr, WARPS: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Store a tile of the state after the window (4)."""
    at_i, at_j = _places(PART, WARPS)
    hi, mid, lo = split3(U * to)
    for part in tl.static_range(PARTS):
        tile = dot_cut_onto(left * _to_product(tiles[part], PART, WARPS), hi, mid, lo, keys[part])  # (4)
        tile = _to_memory(tile, PART, WARPS).to(S.dtype.element_ty)
        at = S + part * PART * ROW + at_i.to(tl.int64) * ROW + (j + at_j)
        if K == PART * PARTS and V % BLOCK_V == 0:
            tl.store(at, tile)
        else:
            tl.store(at, tile, mask=(part * PART + at_i < K) & (j + at_j < V))


@triton.jit
def _delta_apply_kernel(
    S, q, k, v, slots, live, parts, factors, o,
    stride_S, stride_q, stride_k, stride_v, stride_o, stride_live, stride_parts, stride_factors,
    T: tl.constexpr, K: tl.constexpr, V: tl.constexpr, ROW: tl.constexpr, HEADS_PER_KEY: tl.constexpr,
    WRITE_STATE: tl.constexpr, BLOCK_T: tl.constexpr, LONGEST: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
    TILES: tl.constexpr, RUN: tl.constexpr, WARPS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    if slot < 0:
        if OVERLAP:
            tl.extra.cuda.gdc_wait()  # a launch that ends must have waited for the previous one
    else:
        BLOCK_V: tl.constexpr = 16 * WARPS
        # Rows x of the window: its queries, then its keys. Columns y: the last 16 of them, 8 queries before 8 keys.
        X: tl.constexpr = 2 * BLOCK_T
        x, y = tl.arange(0, X), X - 16 + tl.arange(0, 16)
        is_key, key_y = x >= BLOCK_T, y >= BLOCK_T
        t_x, t_y = (x % BLOCK_T).to(tl.int64), (y % BLOCK_T).to(tl.int64)
        t_v, j_v = _places(16, WARPS)
        real_x, real_y, of_v = _real(live, b, t_x, t_y, t_v, key_y, stride_live, T, BLOCK_T)
        first = tl.program_id(0) * RUN
        at_S, at_v = S + slot * stride_S.s + h * stride_S.h, v + b * stride_v.b + h * stride_v.h
        tiles, v_t = _load_tile(
            at_S, at_v, first * BLOCK_V, True, of_v, stride_v.t, K, V, ROW, BLOCK_T, PART, PARTS, WARPS
        )  # fmt: skip
        # Otherwise ptxas moves the load of the tile after the rows, or until they have arrived. With a run of tiles the fence
        # costs more than it gains. The times are in docs/explanation/tuning.md.
        if RUN == 1:
            tl.debug_barrier()
        at_q = q + b * stride_q.b + (h // HEADS_PER_KEY) * stride_q.g
        at_k = k + b * stride_k.b + (h // HEADS_PER_KEY) * stride_k.g
        xs, keys = _load_rows(
            at_q, at_k, t_x, t_y, is_key, real_x, real_y, stride_q.t, stride_k.t, K, WRITE_STATE, PART, PARTS
        )  # fmt: skip
        if OVERLAP:
            tl.extra.cuda.gdc_wait()  # for the solved system; everything else was ready before that launch
        M, read, to, left = _load_solved(
            parts, factors, x, is_key, t_y, key_y, stride_parts, stride_factors, b, h, WRITE_STATE, BLOCK_T, LONGEST
        )  # fmt: skip
        at_o = o + b * stride_o.b + h * stride_o.h + (t_v % BLOCK_T).to(tl.int64) * stride_o.t + j_v
        for index in tl.range(first, tl.minimum(first + RUN, TILES), num_stages=1):
            j = index * BLOCK_V
            o_t, U = _outputs(tiles, xs, v_t, read, M, key_y, BLOCK_T, BLOCK_V, X, PART, WARPS)
            o_t = _to_memory(o_t, 16, WARPS).to(o.dtype.element_ty)
            tl.store(at_o + j, o_t, mask=(t_v < T) & (j + j_v < V))  # (2)
            if WRITE_STATE:
                _write_tile(at_S, tiles, keys, U, to, left, j, K, V, ROW, PART, PARTS, WARPS, BLOCK_V)
            # After the stores: the next tile takes the registers of this one. It is loaded even if there is none: a loop that
            # carries nothing is unrolled, its operands pass one after the other through one piece of shared memory, and each
            # load waits at the barrier of the last (docs/explanation/tuning.md).
            wanted = (RUN > 1) & (index + 1 < first + RUN) & (index + 1 < TILES)
            tiles, v_t = _load_tile(
                at_S, at_v, j + BLOCK_V, wanted, of_v, stride_v.t, K, V, ROW, BLOCK_T, PART, PARTS, WARPS
            )  # fmt: skip
