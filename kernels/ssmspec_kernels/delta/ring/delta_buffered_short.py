"""The kernel of `delta_buffered` for windows of up to 8 tokens, bf16 activations, a gate per head, k = 128.

Its equations, by one warp for tiles of 32 channels v. The state goes from memory into the registers of the products, with v
as rows and tokens as columns: nothing of it passes through shared memory, and no warp waits for another. A program owns TILES
tiles of one head of one row: the scores of entries and tokens and the inverse of (2) are computed once, by products whose
accumulators have the layout of the next operands. Queries and keys are the rows of one matrix (8 + 8), so that (1) (2) (3)
are one system of 16 in o and u,

    Y = read (S_0^T x) + U history^T,    Z = R inverse^T,    R = beta (v - Y) in columns of keys, Y in those of queries

If not all programs fit at once, those of rows that are due start first (`flush_order`; BLOCK_B is 0 for the given order).
A tile is processed in parts of 32 k; a part of the next tile is loaded when one has been read. Rows that are due add their
history to each part in registers, (5), 16 entries at a time.

Layout: `delta_mma_tile`, with runs of four k.

Bound by the instructions of a tile, most of which cut the state into parts, with 8 warps per SM (docs/explanation/tuning.md).
"""

import triton
import triton.language as tl

from ...shared.cursors import is_due
from ...shared.dots import dot_both, dot_cut, dot_cut_onto, dot_onto, split3
from ...shared.flush_order import row_at, row_in_turn
from ..delta_inputs import gates, load_gate_params
from ..delta_mma_tile import beside, by_lane, from_left, part_rows, to_left, to_right
from ..delta_window import last
from .delta_ring import place

MOST_TOKENS, WIDTH, LONGEST = 8, 128, 32
"""Most tokens of a window, channels k, most entries held."""
RUN: tl.constexpr = tl.constexpr(4)
"""Channels k of a lane that are adjacent."""


@triton.jit
def _append(
    at_decay, at_kept, at_k, g_x, first, count, t, real, is_key, h, stride, stride_ring, K: tl.constexpr,
    HEADS_PER_KEY: tl.constexpr, CAPACITY: tl.constexpr,
):  # fmt: skip
    """Store g and k of the window's tokens after the held entries (4)."""
    new, i = place(first + count + t, CAPACITY), tl.arange(0, K)
    tl.store(at_decay + new * stride_ring.g.l, g_x, mask=real & is_key)
    if h % HEADS_PER_KEY == 0:
        of_key = (real & is_key)[:, None]
        k_x = tl.load(at_k + t[:, None] * stride.k.t + i[None, :], mask=of_key, other=0.0)
        tl.store(at_kept + new[:, None] * stride_ring.k.l + i[None, :], k_x, mask=of_key)  # (4)


@triton.jit
def _short_scores(xs, keys, row, l, is_key, past, scale, eps, L2_NORM: tl.constexpr, BLOCK_L: tl.constexpr):
    """Products of the rows with each other and with the entries, and norms of rows, columns and entries."""
    to_x, to_l = tl.zeros((16, 16), tl.float32), tl.zeros((16, BLOCK_L), tl.float32)
    of_l = tl.zeros((BLOCK_L, BLOCK_L), tl.float32)
    for part in tl.static_range(4):
        to_x = tl.dot(xs[part], tl.trans(xs[part]), acc=to_x)
        to_l = tl.dot(xs[part], tl.trans(keys[part]), acc=to_l)
        if L2_NORM:
            of_l = tl.dot(keys[part], tl.trans(keys[part]), acc=of_l)
    same, scale_x = row[:, None] == row[None, :], tl.where(is_key, 1.0, scale)
    r_x, r_c, r_l = scale_x, scale_x, tl.where(past, 1.0, 0.0)
    if L2_NORM:
        squares = tl.where(same, to_x, 0.0)
        r_x, r_c = r_x * tl.rsqrt(tl.sum(squares, axis=1) + eps), r_c * tl.rsqrt(tl.sum(squares, axis=0) + eps)
        r_l *= tl.rsqrt(tl.sum(tl.where(l[:, None] == l[None, :], of_l, 0.0), axis=0) + eps)
    return to_x, to_l, r_x, r_c, r_l


@triton.jit
def _short_inverse(to_x, r_x, r_c, beta_x, since, since_c, row, t, is_key, real, T: tl.constexpr):
    """The inverse of the system of rows."""
    same = row[:, None] == row[None, :]
    sees = is_key[None, :] & real[None, :] & ((t[:, None] > t[None, :]) | ((t[:, None] == t[None, :]) & ~is_key[:, None]))
    coupling = to_x * (r_x[:, None] * r_c[None, :])
    coupling *= tl.exp(tl.where(sees, since[:, None] - since_c[None, :], float("-inf")))
    coupling *= tl.where(is_key, beta_x, -1.0)[:, None]
    inverse = tl.where(same, 1.0, 0.0)
    for s in tl.static_range(T):
        column = tl.sum(tl.where((row == 8 + s)[None, :], coupling, 0.0), axis=1)
        line = tl.sum(tl.where((row == 8 + s)[:, None], inverse, 0.0), axis=0)
        inverse -= column[:, None] * line[None, :]
    return inverse


@triton.jit
def _short_sums(g_l, g_x, row, t, count):
    """G of each entry, the total of all entries, and the sums of g within the window, as rows and as columns."""
    G_l = tl.cumsum(g_l, axis=0)
    total = last(G_l, count - 1)
    own = tl.where((row[None, :] <= t[:, None]) & (row < 8)[None, :], g_x[None, :], 0.0)
    since = tl.sum(own, axis=1)  # what the tokens of the window add to the total
    since_c = tl.sum(tl.where((row[:, None] <= t[None, :]) & (row < 8)[:, None], g_x[:, None], 0.0), axis=0)
    return G_l, total, since, since_c


@triton.jit
def delta_buffered_short_kernel(
    S, q, k, v, g, beta, A, dt_bias, slots, lengths, ring_u, ring_k, ring_g, origin, held, o, stride: tl.constexpr,
    stride_ring: tl.constexpr, stride_bias_h: tl.constexpr, scale, eps, rows, T: tl.constexpr, K: tl.constexpr,
    V: tl.constexpr, HEADS_PER_KEY: tl.constexpr, L2_NORM: tl.constexpr, CAPACITY: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_L: tl.constexpr, TILES: tl.constexpr, BLOCK_B: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    if BLOCK_B > 0:
        b, _, _, _, _ = row_in_turn(tl.program_id(2), slots, lengths, origin, held, rows, T, WINDOW, CAPACITY, BLOCK_B)
    slot, length, first, count = row_at(b, slots, lengths, origin, held, T)
    if slot >= 0:
        group, j = h // HEADS_PER_KEY, tl.program_id(0) * (TILES * 32)
        at_S = S + slot * stride.S.s + h * stride.S.h
        near = load_part(at_S, j, True, 0, stride.S.k, V, TILES)
        at_q, at_k = q + b * stride.q.b + group * stride.q.g, k + b * stride.k.b + group * stride.k.g
        at_kept = ring_k + slot * stride_ring.k.s + group * stride_ring.k.g
        at_decay = ring_g + slot * stride_ring.g.s + h * stride_ring.g.h
        row, l = tl.arange(0, 16), tl.arange(0, BLOCK_L)
        is_key, t = row >= 8, (row % 8).to(tl.int64)
        real, past = t < length, l < count
        row_x, row_l = left_rows(16), left_rows(BLOCK_L)
        t_x = (row_x % 8).to(tl.int64)
        at_x = tl.where(row_x < 8, at_q + t_x * stride.q.t, at_k + t_x * stride.k.t)
        at_l = at_kept + place(first + row_l, CAPACITY) * stride_ring.k.l
        xs, keys = _four_parts(at_x, t_x < length), _four_parts(at_l, row_l < count)
        at_beta = beta + b * stride.beta.b + h * stride.beta.h + t * stride.beta.t
        beta_x = tl.load(at_beta, mask=real, other=0.0).to(tl.float32)
        g_x = tl.load(g + b * stride.g.b + h * stride.g.h + t * stride.g.t, mask=real, other=0.0).to(tl.float32)
        g_l = tl.load(at_decay + place(first + l, CAPACITY) * stride_ring.g.l, mask=past, other=0.0)
        decay, bias = load_gate_params(A, dt_bias, h, row, stride_bias_h, real, False)
        g_x, beta_x = gates(g_x, beta_x, decay, bias, A)
        g_x = tl.where(real, g_x, 0.0)
        if tl.program_id(0) == 0:
            _append(
                at_decay, at_kept, at_k, g_x, first, count, t, real, is_key, h, stride, stride_ring, K, HEADS_PER_KEY,
                CAPACITY,
            )  # fmt: skip
        G_l, total, since, since_c = _short_sums(g_l, g_x, row, t, count)
        to_x, to_l, r_x, r_c, r_l = _short_scores(xs, keys, row, l, is_key, past, scale, eps, L2_NORM, BLOCK_L)
        inverse = _short_inverse(to_x, r_x, r_c, beta_x, since, since_c, row, t, is_key, real, T)
        behind = total - G_l
        between = tl.exp(tl.where(past[None, :], since[:, None] + behind[None, :], float("-inf")))
        history = tl.trans(to_l * (r_x[:, None] * r_l[None, :]) * between)
        inverse, read, strength = tl.trans(inverse), r_c * tl.exp(total + since_c), tl.where(is_key, beta_x, 1.0)
        at_u = ring_u + slot * stride_ring.u.s + h * stride_ring.u.h
        at_v, at_o = v + b * stride.v.b + h * stride.v.h, o + b * stride.o.b + h * stride.o.h
        if (length > 0) & is_due(count, WINDOW, CAPACITY):
            weight = sixteens(r_l * tl.exp(tl.where(past, behind, float("-inf"))))
            walk(
                near, at_S, at_u, at_v, at_o, at_kept, origin + slot, xs, inverse, history, read, strength, weight,
                tl.exp(total), first, count, length, j, stride, stride_ring, T, V, CAPACITY, BLOCK_L, TILES, True,
            )  # fmt: skip
        else:
            walk(
                near, at_S, at_u, at_v, at_o, at_kept, origin + slot, xs, inverse, history, read, strength, (), 1.0, first,
                count, length, j, stride, stride_ring, T, V, CAPACITY, BLOCK_L, TILES, False,
            )  # fmt: skip


@triton.jit
def walk(
    near, S, ring_u, v, o, ring_k, origin, xs, inverse, history, read, strength, weight, left, first, count, length, j_0,
    stride: tl.constexpr, stride_ring: tl.constexpr, T: tl.constexpr, V: tl.constexpr, CAPACITY: tl.constexpr,
    BLOCK_L: tl.constexpr, TILES: tl.constexpr, DUE: tl.constexpr,
):  # fmt: skip
    """Processes the tiles of a program, of which the first part is given; the pointers are those of its head. If DUE, (5)
    with `weight` (sixteens of entries) and `left`, r exp(G_h - G_j) and exp(G_h)."""
    WHOLE: tl.constexpr = V % (TILES * 32) == 0
    parts: tl.constexpr = len(xs)
    AHEAD: tl.constexpr = 1 if DUE else 2
    is_key = tl.arange(0, 16) >= 8
    i_hi, i_mid, i_lo = split3(inverse)
    h_hi, h_mid, h_lo = split3(history)
    far = near
    if not DUE:
        far = load_part(S, j_0, True, 1, stride.S.k, V, TILES)
    for tile in tl.range(0, TILES, num_stages=1):
        j, more = j_0 + tile * 32, tile + 1 < TILES
        row, cols = beside(16)
        t, of_key, at_j = (row % 8).to(tl.int64), row >= 8, j + cols
        in_v = (at_j < V) | WHOLE
        v_t = tl.load(v + (t * stride.v.t)[:, None] + at_j, mask=(of_key & (t < length))[:, None] & in_v, other=0.0)
        l, cols_l = beside(BLOCK_L)
        at_u = ring_u + (place(first + l, CAPACITY) * stride_ring.u.l)[:, None] + (j + cols_l)
        u_l = to_left(by_lane(tl.load(at_u, mask=(l < count)[:, None] & ((j + cols_l < V) | WHOLE), other=0.0)))
        Y = tl.zeros((32, 16), tl.float32)
        for part in tl.static_range(parts):
            state = to_left(by_lane(near.to(tl.float32)))
            if DUE:
                fold(
                    state, left, weight, S, ring_u, ring_k, origin, first, count, j, part, stride, stride_ring, V, CAPACITY,
                    TILES,
                )  # fmt: skip
            else:
                near = far
            if part + AHEAD < parts:
                far = load_part(S, j, True, part + AHEAD, stride.S.k, V, TILES)
            else:
                far = load_part(S, j + 32, more, part + AHEAD - parts, stride.S.k, V, TILES)
            if DUE:
                near = far
            Y = dot_onto(Y, state, tl.trans(xs[part]))
        Y *= read[None, :]
        if u_l.dtype == tl.float32:
            Y += dot_both(u_l, history, True)
        else:
            Y = tl.dot(u_l, h_lo, acc=Y)
            Y = tl.dot(u_l, h_mid, acc=Y)
            Y = tl.dot(u_l, h_hi, acc=Y)
        R = tl.where(is_key[None, :], strength[None, :] * (to_left(by_lane(v_t)).to(tl.float32) - Y), Y)
        hi, mid, lo = split3(R)
        Z = from_left(dot_cut(hi, mid, lo, i_hi, i_mid, i_lo, False))
        tl.store(o + (t * stride.o.t)[:, None] + at_j, Z.to(o.dtype.element_ty), mask=(~of_key & (t < T))[:, None] & in_v)
        at_new = ring_u + (place(first + count + t, CAPACITY) * stride_ring.u.l)[:, None] + at_j
        tl.store(at_new, Z.to(ring_u.dtype.element_ty), mask=(of_key & (t < length))[:, None] & in_v)  # (4)


@triton.jit
def fold(
    state, left, weight, S, ring_u, ring_k, origin, first, count, j, part: tl.constexpr, stride: tl.constexpr,
    stride_ring: tl.constexpr, V: tl.constexpr, CAPACITY: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """(5) for a part of a tile."""
    WHOLE: tl.constexpr = V % (TILES * 32) == 0
    again = tl.load(origin).to(tl.int32)  # otherwise the pointers of the ring stay in registers over parts and tiles
    following = left * state
    for n in tl.static_range(len(weight)):
        l, cols = beside(16)
        at_u = ring_u + (place(again + n * 16 + l, CAPACITY) * stride_ring.u.l)[:, None] + (j + cols)
        u = tl.load(at_u, mask=(n * 16 + l < count)[:, None] & ((j + cols < V) | WHOLE), other=0.0)
        keys = load_right(ring_k, again, count, n, part, stride_ring.k.l, CAPACITY)
        hi, mid, lo = split3(to_left(by_lane(u)).to(tl.float32) * weight[n][None, :])
        following = dot_cut_onto(following, hi, mid, lo, keys)
    k, v = part_rows(part, RUN)
    inside = (j + v < V) | WHOLE
    at_part = S + (k.to(tl.int64) * stride.S.k)[:, None] + (j + v)
    tl.store(at_part, from_left(following).to(S.dtype.element_ty), mask=inside, eviction_policy="evict_first")


@triton.jit
def sixteens(x):
    """x (16) or (32) in sixteens."""
    parts = (x,)
    if x.shape[0] == 32:
        parts = tl.split(tl.trans(tl.reshape(x, (2, 16))))
    return parts


@triton.jit
def load_part(S, j, wanted, part: tl.constexpr, stride: tl.constexpr, V: tl.constexpr, TILES: tl.constexpr):
    """A part of the tile from channel j on, in memory order; zeros outside."""
    k, v = part_rows(part, RUN)
    inside = ((j + v < V) | (V % (TILES * 32) == 0)) & wanted
    at_part = S + (k.to(tl.int64) * stride)[:, None] + (j + v)
    return tl.load(at_part, mask=inside, other=0.0, eviction_policy="evict_first")


@triton.jit
def left_rows(ROWS: tl.constexpr):
    """The row of each run of k of a left operand of ROWS rows of activations."""
    row = tl.arange(0, ROWS * 8)
    return row // 64 * 8 + row // 4 % 8


@triton.jit
def load_left(start, real, part: tl.constexpr):
    """(row, permuted k of a part) of rows that begin at the pointers `start`, those of `left_rows`; zeros where not real."""
    row = tl.arange(0, start.shape[0])
    k = (part * 32 + (row % 4 * 2 + row // 32 % 2) * 4)[:, None] + tl.arange(0, 4)[None, :]
    runs = tl.load(start[:, None] + k, mask=real[:, None], other=0.0)
    parts = tl.permute(tl.reshape(runs, (start.shape[0] // 64, 2, 8, 4, 4)), (0, 2, 4, 3, 1))
    return tl.reshape(parts, (start.shape[0] // 8, 32))


@triton.jit
def _four_parts(start, real):
    """All parts of rows that begin at the pointers `start`."""
    return load_left(start, real, 0), load_left(start, real, 1), load_left(start, real, 2), load_left(start, real, 3)


@triton.jit
def load_right(ring, first, count, n: tl.constexpr, part: tl.constexpr, stride: tl.constexpr, CAPACITY: tl.constexpr):
    """(entry, permuted k of a part): the n-th 16 keys held, as a right operand; zeros after them."""
    l, k = beside(16, RUN, n * 16, part * 8 * RUN)
    start = ring + place(first + l, CAPACITY) * stride
    return to_right(tl.load(start[:, None] + k, mask=(l < count)[:, None], other=0.0))
