"""Rows that are due before all others, for launches of several rounds of programs.

A program of a row that is due lasts two to three times as long as another: one that starts in the last round decides when the
launch ends. So the p-th row of a launch is

    row = the p-th of those that are due, then the others, both in their order                   (1)

which each program finds for itself from the cursors of all rows, one load behind another as for its own row alone. The kernel
of the delta rule has no registers for what is picked out beside it, and loads that of its row once more: 88 bytes spilled,
not 660.

On an H200, windows of 6 tokens of the delta rule where rows flush in turn took 1.05 and 0.94 plain steps for 64 and 256 rows
over a ring of 32, not 1.24 and 1.02, and 1.13 and 1.14 over one of 22, not 1.31 and 1.24. Where all rows flush together they
took 0.93 and 0.94, not 0.91 and 0.93, and 1.13 and 1.14, not 1.13 and 1.15.
"""

import triton
import triton.language as tl

MOST = 1024
"""Rows that a program looks through."""


@triton.jit
def row_at(b, slots, lengths, origin, held, T: tl.constexpr):
    """Slot of row b, its real tokens, the first of its entries, and how many it holds."""
    slot = b
    if slots is not None:
        slot = tl.load(slots + b).to(tl.int64)
    length = T
    if lengths is not None:
        length = tl.minimum(tl.load(lengths + b).to(tl.int32), T)
    first = tl.load(origin + slot, mask=slot >= 0, other=0).to(tl.int32)
    return slot, length, first, tl.load(held + slot, mask=slot >= 0, other=0).to(tl.int32)


@triton.jit
def rows_in_order(
    slots, lengths, held, rows, T: tl.constexpr, WINDOW: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr
):
    """Of up to BLOCK rows their slots, real tokens, entries; which are rows with a slot, and which of these are due."""
    row = tl.arange(0, BLOCK)
    slot, length = row.to(tl.int64), tl.full((BLOCK,), T, tl.int32)
    if slots is not None:
        slot = tl.load(slots + row, mask=row < rows, other=-1).to(tl.int64)
    if lengths is not None:
        length = tl.minimum(tl.load(lengths + row, mask=row < rows, other=0).to(tl.int32), T)
    live = (row < rows) & (slot >= 0)
    count = tl.load(held + slot, mask=live, other=0).to(tl.int32)
    return slot, length, count, live, live & (length > 0) & (count + 2 * WINDOW > CAPACITY)


@triton.jit
def row_in_turn(
    p, slots, lengths, origin, held, rows, T: tl.constexpr, WINDOW: tl.constexpr, CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """(1) for a launch of `rows` rows, at most BLOCK; and what `row_at` says of it, picked out and not loaded once more."""
    slot, length, count, live, due = rows_in_order(slots, lengths, held, rows, T, WINDOW, CAPACITY, BLOCK)
    first, row = tl.load(origin + slot, mask=live, other=0).to(tl.int32), tl.arange(0, BLOCK)
    before = tl.cumsum(due.to(tl.int32), axis=0)
    turn = tl.where(due, before - 1, tl.sum(due.to(tl.int32), axis=0) + row - before)
    here = turn == p
    return _at(here, row).to(tl.int64), _at(here, slot), _at(here, length), _at(here, first), _at(here, count)


@triton.jit
def _at(here, x):
    return tl.sum(tl.where(here, x, 0), axis=0)
