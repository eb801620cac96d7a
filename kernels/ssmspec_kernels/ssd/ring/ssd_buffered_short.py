"""The kernel of `ssd_buffered` for windows of up to 8 tokens: one warp per program, over runs of tiles of 16 channels.

    y, ring, S_0'    as in `ssd_buffered`, (1) to (3)

The heads of a group of one row are stored one after the other, in tiles (`ssd_state_tile`); a run of tiles may begin and end
within a head. `ssd_verify_flush` processes rows that are flushed, `ssd_verify_open` the others.

With a moderate number of tiles one launch does both: its grid is (runs of a group, groups, rows), and a program reads the
cursors of its own row. If not all programs fit at once, those of rows that are flushed start first (`flush_order`).
With many tiles each kind of rows has its own launch, whose programs share the tiles evenly over heads, groups and rows.
A program finds the rows of its kind among all rows, again for every row of its run: keeping the ranks would take registers.
Rows without a flush need fewer registers, so that 12 warps fit an SM instead of 8, and their runs are as long as possible.

The second launch may start once all programs of the first have waited for the launch before both. It works on other rows, so
it waits for the first one only at its end: a later launch then waits for both.

Layout: as in `ssd_buffered`.
Bound by the bytes of the state and of the ring's live entries; for few rows by the latency of a run's dependent steps:
cursors, entries, scores, weights.
"""

import math

import triton
import triton.language as tl
import triton.language.extra.cuda  # griddepcontrol
from torch import Tensor

from ...launch import overlapped
from ...shared.cursors import is_due
from ...shared.flush_order import MOST, row_at, row_in_turn, rows_in_order
from ...shared.strides import constant
from ...shared.tuning import H200
from ..ssd_inputs import Inputs, skip_strides, window_strides
from .ssd_ring import Ring
from .ssd_state_tile import CHANNELS, RESIDENT, has_many_tiles, tiles_per_program
from .ssd_verify_flush import verify_flush
from .ssd_verify_open import verify_open

MOST_TOKENS = 8
TUNED = H200["ssd_buffered_short"]
OPEN_PROGRAMS, FLUSHED_PROGRAMS = TUNED["open_programs"], TUNED["flushed_programs"]
"""Programs of each launch when the two kinds of rows are separate: as many as an H200 holds at once for the open rows, and
four times as many for the rows that are flushed, since some of these take longer."""
MANY = TUNED["apart_from"]
"""From this number of tiles on, rows that are due have their own launch."""
FLUSHED_RUN, LONG_RUN = TUNED["flushed_run"], TUNED["long_run"]
"""Most tiles of a run with a flush when the kinds of rows are separate, since longer runs write to more places at a
time; a program processes several such runs. Also the tiles of a program in one launch for many rows."""


def launch_short(
    given: Inputs, ring: Ring, lengths: Tensor | None, y: Tensor, window: int, run: int | None, apart: bool | None,
    flushed_first: bool | None,
) -> None:  # fmt: skip
    """Runs the kernel on checked arguments; `run` is the tiles of a program, at most when the kinds of rows are separate."""
    b, t, h, p, n, g = given.sizes
    head = triton.cdiv(p, CHANNELS)
    of_group = h // g * head
    tiles = b * g * of_group
    if apart is None:
        apart = tiles >= MANY and b <= MOST
    for open_, flushed in ((False, True), (True, False)) if apart else ((True, True),):
        resident, most = (OPEN_PROGRAMS, run or tiles) if open_ else (FLUSHED_PROGRAMS, run or FLUSHED_RUN)
        each = run or (LONG_RUN if has_many_tiles(b, h, p) else tiles_per_program(b, h, h // g, p))
        grid = (min(tiles, resident),) if apart else (triton.cdiv(of_group, each), g, b)
        in_turn = apart or (b <= MOST and (math.prod(grid) > RESIDENT if flushed_first is None else flushed_first))
        ssd_buffered_short_kernel[grid](
            *given.tensors, lengths, ring.tensors, y, constant(window_strides(given, y)), constant(ring.strides),
            constant(skip_strides(given)), *given.dt_limit, b, most if apart else each, T=t, P=p, N=n, GROUPS=g,
            **given.constants, D_HEAD=given.skip_per_head, CAPACITY=ring.capacity, WINDOW=window,
            BLOCK_L=max(16, triton.next_power_of_2(ring.capacity)),
            BLOCK_F=max(16, triton.next_power_of_2(ring.capacity - t)), HALF_N=max(16, triton.next_power_of_2(n) // 2),
            BLOCK_P=CHANNELS, TILES=head, OPEN=open_, FLUSHED=flushed, BLOCK_B=triton.next_power_of_2(b) if in_turn else 1,
            STAGES=TUNED["stages" if open_ else "flushed_stages"], num_warps=1,
            maxnreg=None if flushed else TUNED["open_registers"], **overlapped(y.device),
        )  # fmt: skip


@triton.jit
def _own_row(
    b, slots, lengths, ring, rows, T: tl.constexpr, WINDOW: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr
):
    """The row of program b, or the b-th row with those that are due first, with the values of `row_at`."""
    if BLOCK > 1:
        b, slot, length, first, count = row_in_turn(
            tl.program_id(2), slots, lengths, ring.origin, ring.held, rows, T, WINDOW, CAPACITY, BLOCK
        )
    else:
        slot, length, first, count = row_at(b, slots, lengths, ring.origin, ring.held, T)
    return b, slot, length, first, count


@triton.jit(do_not_specialize=["rows", "most"])
def ssd_buffered_short_kernel(
    S, x, dt, A, B, C, D, z, dt_bias, slots, lengths, ring, y, stride, stride_ring, stride_D, low, high, rows, most,
    T: tl.constexpr, P: tl.constexpr, N: tl.constexpr, GROUPS: tl.constexpr, HEADS_PER_GROUP: tl.constexpr,
    D_HEAD: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr, CAPACITY: tl.constexpr, WINDOW: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_F: tl.constexpr, HALF_N: tl.constexpr, BLOCK_P: tl.constexpr, TILES: tl.constexpr,
    OPEN: tl.constexpr, FLUSHED: tl.constexpr, BLOCK_B: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """OPEN: rows that are not due are processed; FLUSHED: rows that are due are, by a launch that comes first."""
    if OVERLAP:
        if FLUSHED:
            tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    of_group: tl.constexpr = HEADS_PER_GROUP * TILES
    whole: tl.constexpr = (P % BLOCK_P == 0) & (N == 2 * HALF_N)
    inputs, strides = (x, dt, A, B, C, D, z, dt_bias), (stride, stride_ring, stride_D)
    if OPEN and FLUSHED:
        b, g = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
        begin = tl.program_id(0) * most
        end = tl.minimum(begin + most, of_group)
        b, slot, length, first, count = _own_row(b, slots, lengths, ring, rows, T, WINDOW, CAPACITY, BLOCK_B)
        if slot >= 0:
            if (length > 0) & is_due(count, WINDOW, CAPACITY):
                verify_flush(
                    S, inputs, ring, y, strides, b, slot, g, begin, end, length, first, count, low, high, T, P, N,
                    HEADS_PER_GROUP, D_HEAD, SOFTPLUS, LIMIT, CAPACITY, BLOCK_F, HALF_N, BLOCK_P, TILES, STAGES, whole,
                )  # fmt: skip
            else:
                verify_open(
                    S, inputs, ring, y, strides, b, slot, g, begin, end, length, first, count, low, high, T, P, N,
                    HEADS_PER_GROUP, D_HEAD, SOFTPLUS, LIMIT, CAPACITY, BLOCK_L, HALF_N, BLOCK_P, TILES, STAGES, whole,
                )  # fmt: skip
    else:
        rank = ranks(slots, lengths, ring.held, rows, T, WINDOW, CAPACITY, BLOCK_B, FLUSHED)
        tiles = tl.max(rank, axis=0) * (GROUPS * of_group)
        run = tl.maximum(tl.minimum(tl.cdiv(tiles, tl.num_programs(0)), most), 1)
        for first_tile in tl.range(tl.program_id(0) * run, tiles, tl.num_programs(0) * run, num_stages=1):
            begin = tl.full((), 0, tl.int32) + first_tile
            end = tl.minimum(begin + run, tiles)
            while begin < end:
                rank = ranks(slots, lengths, ring.held, rows, T, WINDOW, CAPACITY, BLOCK_B, FLUSHED)
                here = rank == begin // (GROUPS * of_group) + 1
                b = tl.sum(tl.where(here, tl.arange(0, BLOCK_B), 0), axis=0).to(tl.int64)
                slot, length, first, count = row_at(b, slots, lengths, ring.origin, ring.held, T)
                g, start = (begin // of_group % GROUPS).to(tl.int64), begin % of_group
                stop = tl.minimum(start + end - begin, of_group)
                if FLUSHED:
                    verify_flush(
                        S, inputs, ring, y, strides, b, slot, g, start, stop, length, first, count, low, high, T, P, N,
                        HEADS_PER_GROUP, D_HEAD, SOFTPLUS, LIMIT, CAPACITY, BLOCK_F, HALF_N, BLOCK_P, TILES, STAGES, whole,
                    )  # fmt: skip
                else:
                    verify_open(
                        S, inputs, ring, y, strides, b, slot, g, start, stop, length, first, count, low, high, T, P, N,
                        HEADS_PER_GROUP, D_HEAD, SOFTPLUS, LIMIT, CAPACITY, BLOCK_L, HALF_N, BLOCK_P, TILES, STAGES, whole,
                    )  # fmt: skip
                begin += stop - start
    if OVERLAP and not FLUSHED:
        tl.extra.cuda.gdc_wait()  # this launch may not end before the one it overlaps


@triton.jit
def ranks(
    slots, lengths, held, rows, T: tl.constexpr, WINDOW: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr,
    DUE: tl.constexpr,
):  # fmt: skip
    """1, 2, .. for the rows that are due, or for the other live ones, in order; 0 for all others."""
    _, _, _, live, due = rows_in_order(slots, lengths, held, rows, T, WINDOW, CAPACITY, BLOCK)
    mine = live & (due == DUE)
    return tl.where(mine, tl.cumsum(mine.to(tl.int32), axis=0), 0)
