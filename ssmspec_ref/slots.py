"""A pool of states: rows of a batch are read from slots and written back to them.

Each row gives its slot; a negative slot is padding, which reads zeros and writes nothing. Slot 0 is an ordinary slot. A pool
is an array, or a record of arrays, with the slots as its first axis.

Source: the padding is mamba-ssm's (a negative index); engines that reserve slot 0 for padding declare so.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from .checks import checked
from .errors import PrecisionError, ShapeMismatch, SlotError
from .records import Record, arrays, each
from .shapes import Array, Slots

T = TypeVar("T")


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
        if np.any((self.read < 0) != (self.write < 0)):
            raise SlotError("a row reads a slot and writes none, or the reverse; padding has a negative slot in both")
        clash = (self.write[:, None] == self.read) & (self.write >= 0)[:, None]
        if np.any(clash & (self.write != self.read)[:, None] & ~np.eye(len(self.read), dtype=bool)):
            raise SlotError("a row writes a slot that another row reads; give it a slot that no other row reads")

    @property
    def rows(self) -> Array:
        """The states that the rows read; zeros for padding."""
        live = self.read.reshape(-1, *[1] * (self.states.ndim - 1)) >= 0
        return np.where(live, self.states[self.read], 0.0)

    def written(self, rows: Array) -> Array:
        """The pool after the rows have written: all else is unchanged, bit for bit."""
        return put(self.states, self.write, rows)


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
