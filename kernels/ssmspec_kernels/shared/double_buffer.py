"""A cache of two windows: the last one is read while the next is written, so that one launch can do both.

Entry i of the last written window is at half c + i, that of the next window at (1 - half) c + i, c = l / 2. When a program
stores the next window, programs of other heads may still read the last window's B: with one buffer this would be a race.

    half' = 1 - half        for the rows that have a window                     (1)

The cursor `half` (s) is updated once for all layers that share it, after them. Layout: half (s). Bound by the launch.
"""

from typing import Annotated

import triton
import triton.language as tl
from torch import Tensor

from ssmspec_ref.errors import ParameterError, RingOverflow

from ..launch import INDICES, check_pool
from ..row import Axes, Lengths, Slots, launcher, updates


def check_halves(entries: int, tokens: int) -> int:
    """The entries of a half.

    Raises: ParameterError for halves of unequal size; RingOverflow for a window longer than one.
    """
    if entries % 2:
        raise ParameterError(f"the cache holds {entries} entries; give two windows, an even number")
    if tokens > entries // 2:
        raise RingOverflow(f"a window of {tokens} tokens does not fit the {entries // 2} entries of half a cache; give more")
    return entries // 2


@launcher
def commit_halves(
    axes: Axes,
    half: Annotated[Tensor, updates("s", INDICES, "index")],
    *,
    rows: int,
    slots: Slots | None = None,
    lengths: Lengths | None = None,
) -> None:
    """Swaps the halves of the rows: (1). A row of length 0, or with a negative slot, keeps its cursor.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    if rows < 1 or axes.get("b", rows) != rows:
        raise ParameterError(f"rows is {rows}; give the batch that was stepped, at least 1")
    check_pool(axes["s"], rows, slots)
    _commit_halves_kernel[(triton.cdiv(rows, 128),)](half, slots, lengths, rows, BLOCK=128, num_warps=1)


@triton.jit
def _commit_halves_kernel(half, slots, lengths, rows, BLOCK: tl.constexpr):
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    took = b < rows
    slot = b.to(tl.int64)
    if slots is not None:
        slot = tl.load(slots + b, mask=took, other=-1).to(tl.int64)
        took &= slot >= 0
    if lengths is not None:
        took &= tl.load(lengths + b, mask=took, other=0) > 0
    tl.store(half + slot, 1 - tl.load(half + slot, mask=took, other=0), mask=took)  # (1)
