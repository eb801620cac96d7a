"""A pool of states: rows of a batch are read from slots and written back to them.

Each row gives its slot; a negative slot is padding, which reads zeros and writes nothing. Slot 0 is an ordinary slot. A pool
is an array, or a record of arrays, with the slots as its first axis.

Source: the padding is mamba-ssm's (a negative index); engines that reserve slot 0 for padding declare so.
"""

from typing import TypeVar

import numpy as np

from .checks import checked
from .errors import PrecisionError, ShapeMismatch, SlotError
from .records import arrays, each
from .shapes import Array, Slots

T = TypeVar("T")


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
