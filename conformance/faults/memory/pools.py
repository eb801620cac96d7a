"""Pools of slots read or written in the wrong place: by the row, by padding, or where another sequence lies; and rows that
move to another slot without a token."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref import conv, delta, selective, ssd
from ssmspec_ref.contract import FLOAT64, Adapter
from ssmspec_ref.shapes import Array, Lengths, Mask
from ssmspec_ref.slots import Pool

from ...adapters.reference_parts.pools import WAYS, pooled
from ..recurrences.packed import right as right_packed
from ..single import Wrong, adapter_of


def states(held: Any) -> tuple[Array, Array, Array] | None:
    """The states, the slots that are read and those that are written, as arrays to change; None for rows."""
    return (held.states.copy(), held.read, held.write) if isinstance(held, Pool) else None


def padding_in_the_last_slot(S: Any, token: Any, params: Any) -> tuple[Array, Array]:
    """The slot of padding, -1, is an index from the end: padding advances the last slot. Bug class PAD-SLOT."""
    if (given := states(S)) is None:
        return ssd.step(S, token, params)
    pool, read, write = given
    y, pool_rows = ssd.step(pool[read], token, params)
    pool[write] = pool_rows
    return y, pool


def padding_in_slot_zero(S: Any, window: Any, params: Any) -> tuple[Array, Array]:
    """Padding reads and writes slot 0, as if that slot was always free. Bug class PAD-SLOT."""
    if (given := states(S)) is None:
        return delta.scan(S, window, params)
    pool, read, write = given
    y, rows = delta.scan(pool[np.maximum(read, 0)], window, params)
    pool[np.maximum(write, 0)] = rows
    return y, pool


def writes_where_it_reads(S: Any, window: Any, params: Any) -> tuple[Array, Array]:
    """The new state goes to the slot that was read, so that a shared prefix is advanced. Bug class PREFIX-CKPT."""
    if (given := states(S)) is None:
        return ssd.scan(S, window, params)
    pool, read, _ = given
    live = read >= 0
    y, rows = ssd.scan(S.rows, window, params)
    pool[read[live]] = rows[live]
    return y, pool


def row_is_slot(S: Any, window: Any, params: Any, live: Mask) -> tuple[Array, Array]:
    """Row r reads slot r. Bug class SLOT-SCOPE."""
    if isinstance(S, Pool):
        rows = np.arange(len(S.read))
        S = Pool(S.states, np.where(S.read < 0, -1, rows), np.where(S.write < 0, -1, rows))
    came: tuple[Array, Array] = pooled(selective.scan)(S, window, params, live)
    return came


def clears_the_free(M: Any, u: Array, params: Any) -> tuple[Array, Array]:
    """Slots that no row of the batch names are cleared, although waiting sequences are in them. Bug class SLOT-SCOPE."""
    y, after = pooled(conv.scan)(M, u, params)
    if isinstance(M, Pool):
        after[np.setdiff1d(np.arange(len(after)), M.write)] = 0.0
    return y, after


class KeepsTheSlots:
    """The slots of the first call are used in later ones, as in a graph that was captured once. Bug class SLOT-SCOPE."""

    __name__ = "keeps_the_slots"

    def __init__(self) -> None:
        self.slots: dict[tuple[int, ...], Array] = {}

    def __call__(self, M: Any, u: Array, advanced: Lengths) -> Array:
        if not isinstance(M, Pool):
            return conv.commit(M, u, advanced)
        slots = self.slots.setdefault((len(M.states), *u.shape), M.write.copy())
        pool = M.states.copy()
        live = slots >= 0
        pool[slots[live]] = conv.commit(pool[slots], u, advanced)[live]
        return pool


def counts_padding_in(S: Any, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """The slots of a packed run are counted over its live sequences only. Bug class SLOT-SCOPE."""
    if not isinstance(S, Pool):
        return right_packed("ssd", S, run, bounds, fresh, params)
    live = S.write[S.write >= 0]
    slots = np.full_like(S.write, -1)
    slots[: len(live)] = live
    pool = S.states.copy()
    y, rows = right_packed("ssd", np.where((slots >= 0)[:, None, None, None], pool[slots], 0.0), run, bounds, fresh, params)
    pool[slots[slots >= 0]] = rows[slots >= 0]
    return y, pool


def end_of_a_run_stays(S: Any, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
    """Empty sequences at the end of a run have no program: their states do not come to the slots they are written to. Bug
    class SLOT-SCOPE."""
    y, after = pooled(partial(right_packed, "ssd"))(S, run, bounds, fresh, params)
    return y, stay(S, after, np.equal(bounds[:-1], bounds[-1]) & ~fresh)


def row_without_a_token_stays(S: Any, window: Any, params: Any, live: Mask) -> tuple[Array, Array]:
    """A row without a live token is passed over, and its state does not come to the slot it is written to. Bug class
    SLOT-SCOPE."""
    y, after = pooled(ssd.scan)(S, window, params, live)
    return y, stay(S, after, np.count_nonzero(live, axis=1) == 0)


def nothing_accepted_stays(M: Any, u: Array, advanced: Lengths) -> Array:
    """A row that accepts nothing is passed over, and its window does not come to the slot it is written to. Bug class
    SLOT-SCOPE."""
    return stay(M, moved(conv.commit, M, u, advanced), np.equal(advanced, 0))


def no_path_stays(M: Any, u: Array, path: Array) -> Array:
    """A row without a path is passed over, and its window does not come to the slot it is written to. Bug class
    SLOT-SCOPE."""
    return stay(M, moved(conv.commit_path, M, u, path), path.max(axis=1) < 0)


def moved(commit: Callable[..., Array], held: Any, *rest: Any) -> Array:
    """The windows after a commit, of rows or in a pool."""
    return held.written(commit(held.rows, *rest)) if isinstance(held, Pool) else commit(held, *rest)


def stay(held: Any, after: Array, rows: Array) -> Array:
    """What a pool holds if these rows do not write; rows without a pool stay as they are anyway."""
    if isinstance(held, Pool):
        slots = held.write[rows & (held.write >= 0)]
        after[slots] = held.states[slots]
    return after


FAULTS: tuple[Wrong, ...] = tuple(
    (run, operation, bug_class, FLOAT64, WAYS)
    for run, operation, bug_class in (
        (padding_in_the_last_slot, "ssd.step", "PAD-SLOT"),
        (padding_in_slot_zero, "delta.scan", "PAD-SLOT"),
        (writes_where_it_reads, "ssd.scan", "PREFIX-CKPT"),
        (row_is_slot, "selective.scan_masked", "SLOT-SCOPE"),
        (clears_the_free, "conv.scan", "SLOT-SCOPE"),
        (KeepsTheSlots(), "conv.commit", "SLOT-SCOPE"),
        (counts_padding_in, "ssd.scan_packed", "SLOT-SCOPE"),
        (end_of_a_run_stays, "ssd.scan_packed", "SLOT-SCOPE"),
        (row_without_a_token_stays, "ssd.scan_masked", "SLOT-SCOPE"),
        (nothing_accepted_stays, "conv.commit", "SLOT-SCOPE"),
        (no_path_stays, "conv.commit_path", "SLOT-SCOPE"),
    )
)


def adapter() -> Adapter:
    return adapter_of("pools", FAULTS)
