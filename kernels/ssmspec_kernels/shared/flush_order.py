"""The order of rows in launches with more programs than fit at once: the rows to be flushed come first.

A program of a row that is due for a flush takes two to three times as long as another one; if it starts last, the launch
ends late. So the p-th row of a launch is

    row = the p-th of the rows that are due, followed by the others, each kind in order          (1)

Each program finds its row from the cursors of all rows, with as many dependent loads as for the cursors of one row. The
kernel of the delta rule lacks the registers to keep the result, and loads its row's cursors again.
"""

import triton
import triton.language as tl

from .cursors import is_due

MOST = 1024
"""Most rows that a program searches."""


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
    """For up to BLOCK rows: slots, real tokens, entries; whether each row has a slot, and whether it is due."""
    row = tl.arange(0, BLOCK)
    slot, length = row.to(tl.int64), tl.full((BLOCK,), T, tl.int32)
    if slots is not None:
        slot = tl.load(slots + row, mask=row < rows, other=-1).to(tl.int64)
    if lengths is not None:
        length = tl.minimum(tl.load(lengths + row, mask=row < rows, other=0).to(tl.int32), T)
    live = (row < rows) & (slot >= 0)
    count = tl.load(held + slot, mask=live, other=0).to(tl.int32)
    return slot, length, count, live, live & (length > 0) & is_due(count, WINDOW, CAPACITY)


@triton.jit
def row_in_turn(
    p, slots, lengths, origin, held, rows, T: tl.constexpr, WINDOW: tl.constexpr, CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """(1) for a launch of `rows` rows, at most BLOCK; with the values of `row_at`, selected without loading them again."""
    slot, length, count, live, due = rows_in_order(slots, lengths, held, rows, T, WINDOW, CAPACITY, BLOCK)
    first, row = tl.load(origin + slot, mask=live, other=0).to(tl.int32), tl.arange(0, BLOCK)
    before = tl.cumsum(due.to(tl.int32), axis=0)
    turn = tl.where(due, before - 1, tl.sum(due.to(tl.int32), axis=0) + row - before)
    here = turn == p
    return _at(here, row).to(tl.int64), _at(here, slot), _at(here, length), _at(here, first), _at(here, count)


@triton.jit
def _at(here, x):
    return tl.sum(tl.where(here, x, 0), axis=0)
