"""The cursors of replay buffers, updated on the device: one launch for all layers that share them.

A slot s of a ring with L entries holds its history in the `held` entries from `origin` on, modulo L. A window of up to T
tokens is written after the history and read; then `advanced` of its tokens are accepted, and

    due      = held + 2 T > L      the window flushed such a row: its history is now in the checkpoint           (1)
    origin'  = (origin + held) mod L where due, else origin                                                       (2)
    held'    = advanced where due, else held + advanced                                                           (3)

so that held + T <= L at every window, for L >= 2T: the rule looks one window ahead. In standard decode every token is
accepted, and the L-th goes into the checkpoint with the others, without an entry in the ring:

    held'    = 0 where held + 1 = L, else held + 1                                                                (4)

A row of length 0 keeps its cursors, as do all other slots. Layout: origin and held (s).
Bound by the launch. Source: ReplaySSM, algorithms 4 and 8.
"""

from collections.abc import Iterable
from typing import Annotated

import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError, RingOverflow

from ..launch import INDICES, check_pool
from ..row import Axes, Lengths, Slots, launcher, points, updates

Cursor = Annotated[Tensor, updates("s", INDICES, "index")]


def check_window(capacity: int, window: int, tokens: int) -> None:
    """Raises: ParameterError for a window longer than declared; RingOverflow for a ring that cannot hold two windows."""
    if not 1 <= tokens <= window:
        raise ParameterError(f"the window holds {tokens} tokens, but {window} are declared; declare the longest window")
    if capacity < 2 * window:
        raise RingOverflow(
            f"a ring of {capacity} cannot hold the windows of {window} tokens: after one is accepted no other would fit "
            f"beside it; give a capacity of at least {2 * window}"
        )


@triton.jit
def is_due(held, WINDOW: tl.constexpr, CAPACITY: tl.constexpr):
    """Whether a window flushes a row with `held` entries (1), for one row or a block of rows."""
    return held + 2 * WINDOW > CAPACITY


def flushes(held: Iterable[int], *, window: int, capacity: int) -> int:
    """How many of the rows with `held` entries each a window flushes (1)."""
    return sum(bool(is_due.fn(count, window, capacity)) for count in held)


@launcher
def commit_window(
    axes: Axes,
    origin: Cursor,
    held: Cursor,
    advanced: Annotated[Tensor, points("b")],
    *,
    capacity: int,
    window: int,
    slots: Slots | None = None,
    lengths: Lengths | None = None,
) -> None:
    """Accepts the first `advanced` (b) tokens of each row's last window: (1) to (3).

    Raises: ShapeMismatch, PrecisionError, ParameterError, RingOverflow, before anything is written.
    """
    check_window(capacity, window, window)
    _launch(axes, origin, held, advanced, slots, lengths, capacity, window)


@launcher
def commit_step(
    axes: Axes,
    origin: Annotated[Tensor, points("s")],
    held: Cursor,
    *,
    capacity: int,
    rows: int,
    slots: Slots | None = None,
    lengths: Lengths | None = None,
) -> None:
    """Counts the token of each row in standard decode: (4). `lengths` (b) is 0 for a row without a token.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    _launch(axes, origin, held, None, slots, lengths, capacity, 0, rows)


@launcher
def commit_flush(axes: Axes, origin: Cursor, held: Cursor, *, capacity: int, rows: int, slots: Slots | None = None) -> None:
    """Empties the ring of each row after its history was flushed by hand.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    _launch(axes, origin, held, None, slots, None, capacity, capacity, rows)


def _launch(
    axes: dict[str, int],
    origin: Tensor,
    held: Tensor,
    advanced: Tensor | None,
    slots: Tensor | None,
    lengths: Tensor | None,
    capacity: int,
    window: int,
    rows: int | None = None,
) -> None:
    rows = rows if advanced is None else len(advanced)
    if rows is None or rows < 1 or capacity < 1:
        raise ParameterError(f"rows and capacity are {rows} and {capacity}; give at least 1")
    if axes.get("b", rows) != rows:
        raise ParameterError(f"rows is {rows}, but the arguments have {axes['b']}; give the batch that was stepped")
    check_pool(axes["s"], rows, slots)
    _commit_kernel[(triton.cdiv(rows, 128),)](
        origin, held, advanced, slots, lengths, rows, CAPACITY=capacity, WINDOW=window, BLOCK=128, num_warps=1
    )


@triton.jit
def _commit_kernel(
    origin, held, advanced, slots, lengths, rows, CAPACITY: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr
):
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    took = b < rows
    slot = b.to(tl.int64)
    if slots is not None:
        slot = tl.load(slots + b, mask=took, other=-1).to(tl.int64)
        took &= slot >= 0
    if lengths is not None:
        took &= tl.load(lengths + b, mask=took, other=0) > 0
    start = tl.load(origin + slot, mask=took, other=0)
    past = tl.load(held + slot, mask=took, other=0)
    if WINDOW > 0:
        due = is_due(past, WINDOW, CAPACITY)
        new = tl.zeros_like(past)
        if advanced is not None:
            new = tl.load(advanced + b, mask=took, other=0).to(past.dtype)
        tl.store(origin + slot, tl.where(due, (start + past) % CAPACITY, start), mask=took)  # (2)
        tl.store(held + slot, tl.where(due, new, past + new), mask=took)  # (3)
    else:
        tl.store(held + slot, tl.where(past + 1 == CAPACITY, 0, past + 1), mask=took)  # (4)
