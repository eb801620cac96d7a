"""The kernel of `ssd_buffered` for windows of up to 8 tokens: one warp walks runs of tiles of 16 channels.

The heads of a group of one row lie one behind the other, in tiles (`ssd_tiles`); a run may begin and end within a head. Rows
that are not due take the run of `ssd_open_run`, those that are due that of `ssd_due_run`.

One launch does both where tiles are not very many: its grid is (runs of a group, groups, rows), and a program looks at its
own row; where programs come in several rounds, those of rows that are due start first (`due_first`). Otherwise each kind has
a launch of its own, whose programs share the tiles of its rows evenly, over heads, groups and rows: each finds the rows of
its kind among all, anew for every row that a run meets, since their ranks would lie in registers. What is only read needs
registers for 12 warps in an SM, not 8, and runs as long as can be.

The second launch is placed when the programs of the first have waited for what came before both. It works on other rows, and
so does not wait for the first before it begins, but before it ends: what follows waits for both.

Bound by the bytes of the state and of the ring's live entries, for 256 rows at 0.9 of what a copy reaches; few rows by the
latency of a run behind one launch: cursors, entries, scores, weights.
"""

import math

import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol
from torch import Tensor

from .due_first import MOST, row_at, row_in_turn, rows_in_order
from .launch import overlapped
from .ssd_due_run import due_run
from .ssd_inputs import Inputs
from .ssd_open_run import open_run
from .ssd_ring import Ring
from .ssd_tiles import CHANNELS, RESIDENT, SMS, many, run_of

MOST_TOKENS = 8
OPEN, DUE = 12 * SMS, 32 * SMS
"""Programs of each launch where rows are apart: as many as an H200 holds at once; four times as many fold, since
some end late."""
MANY = 32 * RESIDENT
"""Tiles from which rows that are due have a launch of their own."""
SHORT_RUN, LONG_RUN = 4, 10
"""Most tiles of a run that folds where rows are apart: longer ones write to more places at a time, and took 1.02 to 1.1 times
as long on an H200; a program takes one such run after the other. And tiles of a program in one launch for many rows."""
STAGES = {"due": 3, "open": 2, "all": 2}


def launch_short(
    given: Inputs, ring: Ring, lengths: Tensor | None, y: Tensor, window: int, run: int | None, apart: bool | None,
    due_first: bool | None,
) -> None:  # fmt: skip
    """Run the kernel on arguments that were checked; `run` is the tiles of a program, at most where rows are apart."""
    b, t, h, p, n, g = given.sizes
    head = triton.cdiv(p, CHANNELS)
    of_group = h // g * head
    tiles = b * g * of_group
    if apart is None:
        apart = tiles >= MANY and b <= MOST
    for rows in ("due", "open") if apart else ("all",):
        resident, most = (DUE, run or SHORT_RUN) if rows == "due" else (OPEN, run or tiles)
        each = run or (LONG_RUN if many(b, h, p) else run_of(b, h, h // g, p))
        grid = (min(tiles, resident),) if apart else (triton.cdiv(of_group, each), g, b)
        in_turn = apart or (b <= MOST and (math.prod(grid) > RESIDENT if due_first is None else due_first))
        ssd_buffered_short_kernel[grid](
            *given.tensors, lengths, *ring.tensors, y, *given.strides(y), *ring.strides, *given.scalars, b,
            most if apart else each, T=t, P=p, N=n, GROUPS=g, **given.constants, D_HEAD=given.skip_per_head,
            CAPACITY=ring.capacity, WINDOW=window, BLOCK_L=max(16, triton.next_power_of_2(ring.capacity)),
            BLOCK_F=max(16, triton.next_power_of_2(ring.capacity - t)), HALF_N=max(16, triton.next_power_of_2(n) // 2),
            BLOCK_P=CHANNELS, TILES=head, ROWS=rows, BLOCK_B=triton.next_power_of_2(b) if in_turn else 1,
            FIRST=rows != "open", STAGES=STAGES[rows], num_warps=1, maxnreg=168 if rows == "open" else None,
            **overlapped(y.device),
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "most"])
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
    stride_D_p: tl.constexpr, low, high, rows, most, T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, GROUPS: tl.constexpr,
    HEADS_PER_GROUP: tl.constexpr, D_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, CAPACITY: tl.constexpr,
    WINDOW: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_F: tl.constexpr, HALF_N: tl.constexpr, BLOCK_P: tl.constexpr,
    TILES: tl.constexpr, ROWS: tl.constexpr, BLOCK_B: tl.constexpr, FIRST: tl.constexpr, STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        if FIRST:
            tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    of_group: tl.constexpr = HEADS_PER_GROUP * TILES
    whole: tl.constexpr = (P % BLOCK_P == 0) & (N == 2 * HALF_N)
    tensors = S, x, dt, A, B, C, D, z, dt_bias, ring_x, ring_dt, ring_B, y
    steps = (
        (stride_S_s, stride_S_h, stride_S_p), (stride_x_b, stride_x_t, stride_x_h), (stride_dt_b, stride_dt_t, stride_dt_h),
        (stride_B_b, stride_B_t, stride_B_g), (stride_C_b, stride_C_t, stride_C_g), (stride_z_b, stride_z_t, stride_z_h),
        (stride_y_b, stride_y_t, stride_y_h), (stride_ring_x_s, stride_ring_x_l, stride_ring_x_h),
        (stride_ring_dt_s, stride_ring_dt_l, stride_ring_dt_h), (stride_ring_B_s, stride_ring_B_l, stride_ring_B_g),
        (stride_D_h, stride_D_p),
    )  # fmt: skip
    if ROWS == "all":
        b, g = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
        begin = tl.program_id(0) * most
        end = tl.minimum(begin + most, of_group)
        if BLOCK_B > 1:
            b, slot, length, first, count = row_in_turn(
                tl.program_id(2), slots, lengths, origin, held, rows, T, WINDOW, CAPACITY, BLOCK_B
            )
        else:
            slot, length, first, count = row_at(b, slots, lengths, origin, held, T)
        if slot >= 0:
            if (length > 0) & (count + 2 * WINDOW > CAPACITY):
                due_run(
                    tensors, steps, b, slot, g, begin, end, length, first, count, low, high, T, P, N, HEADS_PER_GROUP,
                    D_HEAD, SOFTPLUS, LIMIT, CAPACITY, BLOCK_F, HALF_N, BLOCK_P, TILES, STAGES, whole,
                )  # fmt: skip
            else:
                open_run(
                    tensors, steps, b, slot, g, begin, end, length, first, count, low, high, T, P, N, HEADS_PER_GROUP,
                    D_HEAD, SOFTPLUS, LIMIT, CAPACITY, BLOCK_L, HALF_N, BLOCK_P, TILES, STAGES, whole,
                )  # fmt: skip
    else:
        rank = ranks(slots, lengths, held, rows, T, WINDOW, CAPACITY, BLOCK_B, ROWS == "due")
        tiles = tl.max(rank, axis=0) * (GROUPS * of_group)
        run = tl.maximum(tl.minimum(tl.cdiv(tiles, tl.num_programs(0)), most), 1)
        for first_tile in tl.range(tl.program_id(0) * run, tiles, tl.num_programs(0) * run, num_stages=1):
            begin = tl.full((), 0, tl.int32) + first_tile
            end = tl.minimum(begin + run, tiles)
            while begin < end:
                rank = ranks(slots, lengths, held, rows, T, WINDOW, CAPACITY, BLOCK_B, ROWS == "due")
                here = rank == begin // (GROUPS * of_group) + 1
                b = tl.sum(tl.where(here, tl.arange(0, BLOCK_B), 0), axis=0).to(tl.int64)
                slot, length, first, count = row_at(b, slots, lengths, origin, held, T)
                g, start = (begin // of_group % GROUPS).to(tl.int64), begin % of_group
                stop = tl.minimum(start + end - begin, of_group)
                if ROWS == "due":
                    due_run(
                        tensors, steps, b, slot, g, start, stop, length, first, count, low, high, T, P, N, HEADS_PER_GROUP,
                        D_HEAD, SOFTPLUS, LIMIT, CAPACITY, BLOCK_F, HALF_N, BLOCK_P, TILES, STAGES, whole,
                    )  # fmt: skip
                else:
                    open_run(
                        tensors, steps, b, slot, g, start, stop, length, first, count, low, high, T, P, N, HEADS_PER_GROUP,
                        D_HEAD, SOFTPLUS, LIMIT, CAPACITY, BLOCK_L, HALF_N, BLOCK_P, TILES, STAGES, whole,
                    )  # fmt: skip
                begin += stop - start
    if OVERLAP and not FIRST:
        tl.extra.cuda.gdc_wait()  # a launch that ends has waited for the one before


@triton.jit
def ranks(
    slots, lengths, held, rows, T: tl.constexpr, WINDOW: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr,
    DUE: tl.constexpr,
):  # fmt: skip
    """1, 2, .. for the rows that are due, or for the other live ones, in order; 0 for all else."""
    _, _, _, live, due = rows_in_order(slots, lengths, held, rows, T, WINDOW, CAPACITY, BLOCK)
    mine = live & (due == DUE)
    return tl.where(mine, tl.cumsum(mine.to(tl.int32), axis=0), 0)
