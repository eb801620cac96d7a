"""A pool of states: rows of a batch are read from slots and written back to them.

Each row gives its slot; a negative slot is padding, which reads zeros and writes nothing. Slot 0 is an ordinary slot. A pool
is an array, or a record of arrays, with the slots as its first axis.

Slots may lie 2^31 elements apart (`far`), over memory that is taken only where it is written. An offset in such a pool does
not fit 32 bits, where 2 * 2^31 is 0: what forms an offset there reads another place.

Source: the padding is mamba-ssm's (a negative index); engines that reserve slot 0 for padding declare so.
"""

import math
import mmap
import sys
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike

from .checks import checked
from .errors import NoRoom, PrecisionError, ShapeMismatch, SlotError
from .records import Record, arrays, each
from .shapes import Array, Fresh, Slots

T = TypeVar("T")

APART = 1 << 31
"""Elements from one slot to the next in a pool that is far apart."""
GIB = 1 << 30
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""MAP_NORESERVE of Linux (asm-generic/mman.h), which the module mmap names from Python 3.13 on: no memory is set aside. The
mapping is shared, since a limit of private memory (RLIMIT_DATA) counts addresses."""


@dataclass(frozen=True)
class Pool(Record):
    """States in slots, and of each row of a batch the slot that it reads and the slot that it writes.

    A row with negative slots is padding: it reads zeros and writes nothing. Several rows may read one slot; each writes its
    own. A row may write another slot than it reads, but no slot that another row reads.

    Raises: PrecisionError, ShapeMismatch, SlotError.
    """

    states: Array
    read: Slots
    write: Slots

    def __post_init__(self) -> None:
        super().__post_init__()
        check_slots(self.write, len(self.states))
        check_slots(np.unique(self.read), len(self.states))
        if len(half := np.flatnonzero((self.read < 0) != (self.write < 0))):
            row = half[0]
            said = f"row {row} reads slot {self.read[row]} and writes slot {self.write[row]}"
            raise SlotError(f"{said}; give it two slots, or, for padding, a negative number in both")
        clash = (self.write[:, None] == self.read) & (self.write >= 0)[:, None]
        clash &= (self.write != self.read)[:, None] & ~np.eye(len(self.read), dtype=bool)
        if clash.any():
            row, other = np.argwhere(clash)[0]
            said = f"row {row} writes slot {self.write[row]}, which row {other} reads"
            raise SlotError(f"{said}; give row {row} a slot that no other row reads")

    @property
    def rows(self) -> Array:
        """The states that the rows read; zeros for padding."""
        live = self.read.reshape(-1, *[1] * (self.states.ndim - 1)) >= 0
        return np.where(live, self.states[self.read], 0.0)

    def written(self, rows: Array) -> Array:
        """The pool after the rows have written: all else is unchanged, bit for bit."""
        return put(self.states, self.write, rows)


@dataclass(frozen=True)
class FarPool(Pool):
    """A pool whose slots lie 2^31 elements apart where an implementation gets it (`far`): its states have that stride.

    The pool that is returned must have it too, so that it is seen that such offsets were formed.
    """


@dataclass(frozen=True)
class FreshPool(Pool):
    """A pool of which the rows marked in `fresh` have no initial state: they start from zeros.

    Their slots still hold the states of sequences that have ended; these are never read.
    """

    fresh: Fresh

    @property
    def rows(self) -> Array:
        """The states that the rows start from; zeros for padding and fresh rows."""
        return np.where(self.fresh.reshape(-1, *[1] * (self.states.ndim - 1)), 0.0, super().rows)


def far(shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> Array:
    """Zeros of a shape, each slot 2^31 elements after the one before.

    Takes (slots - 1) 2^31 elements of addresses, and of memory what is written, in pages.
    Raises: NoRoom if the system does not give so many addresses, or a slot has more than 2^31 elements.
    """
    row, kind = math.prod(shape[1:]), np.dtype(dtype)
    if row > APART:
        raise NoRoom(f"a slot has {row} elements, more than the {APART} between two; give a smaller shape")
    size = ((shape[0] - 1) * APART + max(row, 1)) * kind.itemsize
    try:
        held = mmap.mmap(-1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NO_RESERVE)
    except (OSError, ValueError, OverflowError, MemoryError, AttributeError) as error:
        told = f"{size / GIB:.3g} GiB of addresses are needed, and the system does not give them ({error})"
        raise NoRoom(f"{told}; allow it to overcommit memory, or raise the limit of addresses (ulimit -v)") from error
    inner = np.empty(shape[1:], kind).strides
    return as_strided(np.frombuffer(held, kind, 1), shape, (APART * kind.itemsize, *inner))


def is_far(a: Array, axis: int = 0) -> bool:
    """Whether the slots of a pool, or what lies along another axis, are 2^31 elements apart."""
    return a.ndim > axis and abs(a.strides[axis]) >= APART * a.itemsize


def take(pool: T, slots: Slots) -> T:
    """The initial states of the rows of a batch; zeros for padding.

    Raises: PrecisionError, ShapeMismatch, SlotError (a slot twice, or outside the pool).
    """
    for pooled in arrays(pool):
        check_slots(slots, len(pooled))
    live = slots >= 0

    def rows(pooled: Array) -> Array:
        read = np.zeros((len(slots), *pooled.shape[1:]), dtype=pooled.dtype)
        read[live] = pooled[slots[live]]
        return read

    return each(rows, pool)


def put(pool: T, slots: Slots, batch: T) -> T:
    """A new pool with the states of a batch written to their slots; all else is unchanged, bit for bit.

    Raises: PrecisionError, ShapeMismatch (the batch has not one row per slot), SlotError (a slot twice, or outside the pool).
    """
    for old, new in zip(arrays(pool), arrays(batch), strict=True):
        _check_rows(old, new, slots)
    live = slots >= 0

    def written(pooled: Array, rows: Array) -> Array:
        after = pooled.copy()
        after[slots[live]] = rows[live]
        return after

    return each(written, pool, batch)


@checked
def check_slots(slots: Slots, size: int) -> None:
    """Raise SlotError unless the slots of a batch are distinct slots of a pool of `size`; negative ones are padding.

    Raises: PrecisionError, ShapeMismatch, SlotError.
    """
    seen: dict[int, int] = {}
    for row, slot in enumerate(slots.tolist()):
        if slot >= size:
            raise SlotError(f"row {row} names slot {slot}, but the pool has {size}; give 0 to {size - 1}, or -1 for padding")
        if slot >= 0 and slot in seen:
            raise SlotError(f"rows {seen[slot]} and {row} both name slot {slot}; give each row its own slot")
        seen[slot] = row


def _check_rows(pooled: Array, rows: Array, slots: Slots) -> None:
    check_slots(slots, len(pooled))
    if rows.dtype != pooled.dtype:
        raise PrecisionError(f"the batch is {rows.dtype}, but the pool holds {pooled.dtype}; convert it first")
    if rows.shape != (len(slots), *pooled.shape[1:]):
        needed = (len(slots), *pooled.shape[1:])
        raise ShapeMismatch(f"the batch has shape {rows.shape}, but {len(slots)} slots of this pool need {needed}")
