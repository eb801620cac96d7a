"""Rows that are due before all others, for launches of several rounds of programs.

A program of a row that is due lasts two to three times as long as another: one that starts in the last round decides when the
launch ends. So the p-th row of a launch is

    row = the p-th of those that are due, then the others, both in their order                   (1)

which each program finds for itself from the cursors of all rows, one load behind another as for its own row alone.

On an H200, windows of 6 tokens of the delta rule where rows flush in turn took 1.05 and 0.94 plain steps for 64 and 256 rows
over a ring of 32, not 1.24 and 1.02, and 1.13 and 1.14 over one of 22, not 1.31 and 1.24. Where all rows flush together they
took 0.93 and 0.94, not 0.91 and 0.93, and 1.13 and 1.14, not 1.13 and 1.15.
"""

import triton
import triton.language as tl

MOST = 1024
"""Rows that a program looks through."""


@triton.jit
def row_in_turn(
    p, slots, lengths, held, rows, T: tl.constexpr, WINDOW: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr
):
    """(1) for a launch of `rows` rows, at most BLOCK."""
    row = tl.arange(0, BLOCK)
    slot, length = row.to(tl.int64), tl.full((BLOCK,), T, tl.int32)
    if slots is not None:
        slot = tl.load(slots + row, mask=row < rows, other=-1).to(tl.int64)
    if lengths is not None:
        length = tl.load(lengths + row, mask=row < rows, other=0).to(tl.int32)
    live = (row < rows) & (slot >= 0) & (length > 0)
    due = live & (tl.load(held + slot, mask=live, other=0).to(tl.int32) + 2 * WINDOW > CAPACITY)
    before = tl.cumsum(due.to(tl.int32), axis=0)
    turn = tl.where(due, before - 1, tl.sum(due.to(tl.int32), axis=0) + row - before)
    return tl.sum(tl.where(turn == p, row, 0), axis=0).to(tl.int64)
