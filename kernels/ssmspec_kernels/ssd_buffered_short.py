"""The kernel of `ssd_buffered` for windows of up to 8 tokens: its equations, by one warp for each tile of 16 channels.

The state goes from memory into the registers of the products (`fragments`), channels (p) as rows and tokens (t) as columns,
so that 8 columns do and nothing of it goes through shared memory; so do B and C. A program owns TILES tiles of one head of
one row: the products B C^T of entries and tokens and the weights of the head are computed once, by one warp and without a
barrier between warps. A tile is taken in two halves of n; each half of the next tile is asked for when that of this one has
been read. Rows that are due fold their history into each half as it comes, (3), in a loop of their own, so that the others
need not hold its pointers. Sums over the three parts of the state are separate chains, which do not wait for each other.

Where rows are many, the rows that are due have a launch of their own, which finds them among all rows and shares their heads
out; the launch of the others then needs 168 registers, so that 12 warps fit an SM and not 8. All products are as accurate as
fp32 (`dots`).

Bound by the registers and about 600 instructions a tile, 350 of them cuts of the state, behind 1000 for the weights.
"""

import triton
import triton.language as tl

from .dots import dot_inputs, dot_onto, dot_right, split3
from .fragments import load_operand, load_tile, operand_rows, permuted, store_tile, to_memory, to_product
from .functions import silu
from .ssd_inputs import load_rows, step_size
from .ssd_ring import load_at, place

MOST_TOKENS = 8


@triton.jit
def ssd_buffered_short_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, ring_x, ring_dt, ring_B, origin, held, y, stride_S_s: tl.constexpr,
    stride_S_h: tl.constexpr, stride_S_p: tl.constexpr, stride_x_b: tl.constexpr, stride_x_t: tl.constexpr,
    stride_x_h: tl.constexpr, stride_dt_b: tl.constexpr, stride_dt_t: tl.constexpr, stride_dt_h: tl.constexpr,
    stride_B_b: tl.constexpr, stride_B_t: tl.constexpr, stride_B_g: tl.constexpr, stride_C_b: tl.constexpr,
    stride_C_t: tl.constexpr, stride_C_g: tl.constexpr, stride_z_b: tl.constexpr, stride_z_t: tl.constexpr,
    stride_z_h: tl.constexpr, stride_y_b: tl.constexpr, stride_y_t: tl.constexpr, stride_y_h: tl.constexpr,
    stride_ring_x_s: tl.constexpr, stride_ring_x_l: tl.constexpr, stride_ring_x_h: tl.constexpr,
    stride_ring_dt_s: tl.constexpr, stride_ring_dt_l: tl.constexpr, stride_ring_dt_h: tl.constexpr,
    stride_ring_B_s: tl.constexpr, stride_ring_B_l: tl.constexpr, stride_ring_B_g: tl.constexpr, stride_D_h: tl.constexpr,
    stride_D_p: tl.constexpr, low, high, T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, HEADS_PER_GROUP: tl.constexpr,
    D_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, CAPACITY: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_L: tl.constexpr, HALF_N: tl.constexpr, BLOCK_P: tl.constexpr, TILES: tl.constexpr, ROWS: tl.constexpr,
    B_ROWS: tl.constexpr, BLOCK_B: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    parts: tl.constexpr = (P + TILES * BLOCK_P - 1) // (TILES * BLOCK_P)
    whole: tl.constexpr = (P % (TILES * BLOCK_P) == 0) & (N == 2 * HALF_N)
    if ROWS == "due":
        rank = ranks_of_due(slots, lengths, held, T, WINDOW, CAPACITY, B_ROWS, BLOCK_B)
        items = tl.max(rank, axis=0) * (HEADS * parts)
        item, step_by = tl.program_id(0), tl.num_programs(0)
    else:
        item, items, step_by = 0, 1, 1
    for i_item in tl.range(item, items, step_by, num_stages=1):
        if ROWS == "due":
            here = rank == i_item // (HEADS * parts) + 1
            b = tl.sum(tl.where(here, tl.arange(0, BLOCK_B), 0), axis=0).to(tl.int64)
            h = tl.full((), 0, tl.int64) + i_item // parts % HEADS
            part = i_item % parts
        else:
            b, h, part = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(0)
        slot = b
        if slots is not None:
            slot = tl.load(slots + b).to(tl.int64)
        length = T
        if lengths is not None:
            length = tl.minimum(tl.load(lengths + b).to(tl.int32), T)
        count = tl.load(held + slot, mask=slot >= 0, other=0).to(tl.int32)
        due = (length > 0) & (count + 2 * WINDOW > CAPACITY)
        if (slot >= 0) & ((ROWS != "open") | (due == 0)):
            g, p_0 = h // HEADS_PER_GROUP, part * (TILES * BLOCK_P)
            at_S = S + slot * stride_S_s + h * stride_S_h
            left = load_tile(at_S, p_0, 0, stride_S_p, True, P, N, BLOCK_P, HALF_N, whole)
            right = load_tile(at_S, p_0, HALF_N, stride_S_p, True, P, N, BLOCK_P, HALF_N, whole)
            tl.debug_barrier()  # what follows waits for the cursors; the tile is asked for before
            first = tl.load(origin + slot).to(tl.int32)
            at_C = C + b * stride_C_b + g * stride_C_g
            at_B, at_B_t = ring_B + slot * stride_ring_B_s + g * stride_ring_B_g, B + b * stride_B_b + g * stride_B_g
            C_left = tl.trans(load_window(at_C, stride_C_t, length, 0, N, HALF_N, whole))
            C_right = tl.trans(load_window(at_C, stride_C_t, length, HALF_N, N, HALF_N, whole))
            B_left = load_entries(
                at_B, stride_ring_B_l, at_B_t, stride_B_t, first, count, length, 0, N, BLOCK_L, HALF_N, CAPACITY, whole,
            )  # fmt: skip
            B_right = load_entries(
                at_B, stride_ring_B_l, at_B_t, stride_B_t, first, count, length, HALF_N, N, BLOCK_L, HALF_N, CAPACITY, whole,
            )  # fmt: skip
            e, t, n = tl.arange(0, BLOCK_L), tl.arange(0, 8), tl.arange(0, 2 * HALF_N)
            i, in_n = e - count, n < N
            past, new, real = i < 0, (i >= 0) & (i < length), t < length
            live = past | new
            at, tok, col_t = place(first + e, CAPACITY), i.to(tl.int64), t.to(tl.int64)
            sees = (i[:, None] <= t[None, :]) & live[:, None] & real[None, :]
            if (part == 0) & (h % HEADS_PER_GROUP == 0):
                B_t = load_rows(at_B_t, col_t * stride_B_t, n, real, in_n)
                at_new = place(first + count + t, CAPACITY) * stride_ring_B_l
                tl.store(at_B + at_new[:, None] + n[None, :], B_t, mask=real[:, None] & in_n[None, :])
            scores = tl.where(sees, dot_inputs(B_left, C_left) + dot_inputs(B_right, C_right), 0.0)
            decay = tl.load(A + h)
            bias = 0.0
            if dt_bias is not None:
                bias = tl.load(dt_bias + h).to(tl.float32)
            at_dt = ring_dt + slot * stride_ring_dt_s + h * stride_ring_dt_h
            raw = tl.load(dt + b * stride_dt_b + h * stride_dt_h + tok * stride_dt_t, mask=new, other=0.0)
            step = tl.load(at_dt + at * stride_ring_dt_l, mask=past, other=0.0)
            step += step_size(raw, new, bias, low, high, SOFTPLUS, LIMIT)
            ld = step * decay
            G_e = tl.cumsum(ld, axis=0)
            own = (i[:, None] == t[None, :]) & new[:, None]
            G_t = tl.sum(tl.where(own, G_e[:, None], 0.0), axis=0)  # out of the running sum: a token's own weight is its dt
            W = tl.exp(tl.where(sees, G_t[None, :] - G_e[:, None], float("-inf"))) * (step[:, None] * scores)
            if D_HEAD:
                W = tl.where(i[:, None] == t[None, :], W + tl.load(D + h * stride_D_h).to(tl.float32), W)
            if part == 0:
                tl.store(at_dt + at * stride_ring_dt_l, step, mask=new)
            at_x, at_x_t = ring_x + slot * stride_ring_x_s + h * stride_ring_x_h, x + b * stride_x_b + h * stride_x_h
            rows_x = tl.where(new, at_x_t + tok * stride_x_t, at_x + at * stride_ring_x_l)
            at_y = y + b * stride_y_b + h * stride_y_h
            at_D = D
            if D is not None:
                at_D = D + h * stride_D_h
            at_z = z
            if z is not None:
                at_z = z + b * stride_z_b + h * stride_z_h
            if (ROWS == "due") | ((ROWS == "all") & due):
                total = tl.sum(tl.where(past, ld, 0.0), axis=0)
                behind = tl.load(at_dt + place(first + e + 1, CAPACITY) * stride_ring_dt_l, mask=e + 1 < count, other=0.0)
                since = tl.cumsum(behind * decay, axis=0, reverse=True)  # from the end on: no weight is a difference
                weight = tl.where(past, tl.exp(since) * step, 0.0)
                walk(
                    left, right, tl.exp(G_t), W, C_left, C_right, weight, tl.exp(total), rows_x, at_x + at * stride_ring_x_l,
                    live, new, at_S, at_B, at_x_t, at_D, at_z, at_y, p_0, first, count, length, stride_S_p, stride_ring_B_l,
                    stride_x_t, stride_D_p, stride_z_t, stride_y_t, T, P, N, D_HEAD, CAPACITY, BLOCK_L, HALF_N, BLOCK_P,
                    TILES, whole, True,
                )  # fmt: skip
            else:
                walk(
                    left, right, tl.exp(G_t), W, C_left, C_right, step, 1.0, rows_x, at_x + at * stride_ring_x_l, live, new,
                    at_S, at_B, at_x_t, at_D, at_z, at_y, p_0, first, count, length, stride_S_p, stride_ring_B_l, stride_x_t,
                    stride_D_p, stride_z_t, stride_y_t, T, P, N, D_HEAD, CAPACITY, BLOCK_L, HALF_N, BLOCK_P, TILES, whole,
                    False,
                )  # fmt: skip


@triton.jit
def ranks_of_due(
    slots, lengths, held, T: tl.constexpr, WINDOW: tl.constexpr, CAPACITY: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """1, 2, .. for the rows that are due, in order, and 0 for the others."""
    row = tl.arange(0, BLOCK)
    slot, length = row.to(tl.int64), tl.full((BLOCK,), T, tl.int32)
    if slots is not None:
        slot = tl.load(slots + row, mask=row < ROWS, other=-1).to(tl.int64)
    if lengths is not None:
        length = tl.load(lengths + row, mask=row < ROWS, other=0).to(tl.int32)
    live = (row < ROWS) & (slot >= 0) & (length > 0)
    due = live & (tl.load(held + slot, mask=live, other=0).to(tl.int32) + 2 * WINDOW > CAPACITY)
    return tl.where(due, tl.cumsum(due.to(tl.int32), axis=0), 0)


@triton.jit
def walk(
    left, right, growth, W, C_left, C_right, weight, scale, rows_x, rows_new, live, new, S, ring_B, x, D, z, y, p_0, first,
    count, length, stride_S_p: tl.constexpr, stride_ring_B_l: tl.constexpr, stride_x_t: tl.constexpr,
    stride_D_p: tl.constexpr, stride_z_t: tl.constexpr, stride_y_t: tl.constexpr, T: tl.constexpr, P: tl.constexpr,
    N: tl.constexpr, D_HEAD: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_L: tl.constexpr, HALF_N: tl.constexpr,
    BLOCK_P: tl.constexpr, TILES: tl.constexpr, WHOLE: tl.constexpr, DUE: tl.constexpr,
):  # fmt: skip
    """The tiles of a program, of which the first is given; the pointers are those of its head. Where DUE, (3) with `weight`
    (e) and `scale`, exp(G_h - G_e) dt_e and exp(G_h)."""
    t = tl.arange(0, 8)
    real, col_t = t < length, t.to(tl.int64)
    for tile in tl.range(0, TILES, num_stages=1):
        p_1, more = p_0 + tile * BLOCK_P, tile + 1 < TILES
        p = p_1 + tl.arange(0, BLOCK_P)
        in_p = (p < P) | WHOLE
        x_e = load_at(rows_x, p, live, in_p)
        state = to_product(left.to(tl.float32), BLOCK_P, HALF_N)
        if DUE:
            fold_half(
                state, scale, weight, x_e, S, p_1, 0, stride_S_p, ring_B, stride_ring_B_l, first, count, P, N, BLOCK_P,
                HALF_N, BLOCK_L, CAPACITY, WHOLE,
            )  # fmt: skip
        left = load_tile(S, p_1 + BLOCK_P, 0, stride_S_p, more, P, N, BLOCK_P, HALF_N, WHOLE)
        zeros = tl.zeros((BLOCK_P, 8), tl.float32)
        hi, mid, lo = dot_parts(zeros, zeros, zeros, state, C_left, not DUE)
        state = to_product(right.to(tl.float32), BLOCK_P, HALF_N)
        if DUE:
            fold_half(
                state, scale, weight, x_e, S, p_1, HALF_N, stride_S_p, ring_B, stride_ring_B_l, first, count, P, N, BLOCK_P,
                HALF_N, BLOCK_L, CAPACITY, WHOLE,
            )  # fmt: skip
        right = load_tile(S, p_1 + BLOCK_P, HALF_N, stride_S_p, more, P, N, BLOCK_P, HALF_N, WHOLE)
        hi, mid, lo = dot_parts(hi, mid, lo, state, C_right, not DUE)
        y_t = growth[None, :] * (hi + (mid + lo)) + dot_right(tl.trans(x_e), W)  # (1)
        if D is not None and not D_HEAD:
            skip = tl.load(D + p * stride_D_p, mask=in_p, other=0.0).to(tl.float32)
            at_skip = x + p[:, None] + col_t[None, :] * stride_x_t
            y_t += skip[:, None] * tl.load(at_skip, mask=in_p[:, None] & real[None, :], other=0.0).to(tl.float32)
        if z is not None:
            at_z = z + p[:, None] + col_t[None, :] * stride_z_t
            y_t *= silu(tl.load(at_z, mask=in_p[:, None] & real[None, :], other=0.0).to(tl.float32))
        at_y = y + p[:, None] + col_t[None, :] * stride_y_t
        tl.store(at_y, y_t.to(y.dtype.element_ty), mask=in_p[:, None] & (t < T)[None, :])
        tl.store(rows_new[:, None] + p[None, :], x_e, mask=new[:, None] & in_p[None, :])  # (2)


@triton.jit
def dot_parts(hi, mid, lo, x, y, APART: tl.constexpr):
    """The sums of x y over the parts of x, each onto its own where APART, which takes more registers; else all onto the
    first."""
    if APART and y.dtype == tl.bfloat16:
        x_hi, x_mid, x_lo = split3(x)
        return tl.dot(x_hi, y, acc=hi), tl.dot(x_mid, y, acc=mid), tl.dot(x_lo, y, acc=lo)
    return dot_onto(hi, x, y), mid, lo


@triton.jit
def load_window(
    window, stride: tl.constexpr, length, n_0: tl.constexpr, N: tl.constexpr, BLOCK_N: tl.constexpr, WHOLE: tl.constexpr
):
    """(t, permuted n) of a window's tokens, as an operand; zeros behind the real ones."""
    t, n = operand_rows(8, n_0, BLOCK_N)
    mask = (t < length)[:, None] & ((n < N) | WHOLE)
    return load_operand(window + t.to(tl.int64) * stride, n, mask, 8, BLOCK_N)


@triton.jit
def load_entries(
    ring, stride: tl.constexpr, window, stride_t: tl.constexpr, first, count, length, n_0: tl.constexpr, N: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr, CAPACITY: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """(e, permuted n) of the entries, those held and behind them the window's, as an operand; zeros elsewhere."""
    e, n = operand_rows(BLOCK_L, n_0, BLOCK_N)
    i = e - count
    start = tl.where(i < 0, ring + place(first + e, CAPACITY) * stride, window + i.to(tl.int64) * stride_t)
    return load_operand(start, n, (i < length)[:, None] & ((n < N) | WHOLE), BLOCK_L, BLOCK_N)


@triton.jit
def fold_half(
    state, scale, weight, x_e, S, p_0, n_0: tl.constexpr, stride_p: tl.constexpr, ring_B, stride_B: tl.constexpr, first,
    count, P: tl.constexpr, N: tl.constexpr, BLOCK_P: tl.constexpr, HALF_N: tl.constexpr, BLOCK_L: tl.constexpr,
    CAPACITY: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """(3) for the columns of a tile from n_0 on; `weight` (e) is exp(G_h - G_e) dt_e for those held."""
    e, n = tl.arange(0, BLOCK_L), n_0 + tl.arange(0, HALF_N)
    B = load_rows(ring_B, place(first + e, CAPACITY) * stride_B, n, e < count, (n < N) | WHOLE)
    weighted = tl.trans(weight[:, None] * x_e.to(tl.float32))
    following = dot_onto(scale * state, weighted, permuted(B, BLOCK_L, HALF_N))
    store_tile(S, to_memory(following, BLOCK_P, HALF_N), p_0, n_0, stride_p, P, N, BLOCK_P, HALF_N, WHOLE)
