"""Pools of slots read or written in the wrong place: by the row, by padding, or where another sequence lies; and rows that
move to another slot without a token."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref import conv, delta, ssd
from ssmspec_ref.contract import FLOAT64
from ssmspec_ref.shapes import Array, Lengths
from ssmspec_ref.slots import Pool

from ...adapters.reference_parts.pools import WAYS, kept
from ...mistakes.mistake import Mistake, after, before, instead
from ..fault import planted
from ..right import packed_scan


def written(held: Pool, slots: Array, rows: Array) -> Array:
    """The pool after the rows have written to some slots; what is for a negative slot is lost."""
    pool, live = kept(held, held.states.copy()), slots >= 0
    pool[slots[live]] = rows[live]
    return pool


def through(
    name: str,
    says: str,
    run: Callable[..., Any],
    load: Callable[[Pool], Array] = lambda held: held.rows,
    store: Callable[[Pool, Array], Array] = lambda held, rows: written(held, held.write, rows),
) -> Mistake:
    """An operation that loads the states of its rows from a pool, or stores them in it, in another way."""

    def call(S: Any, *rest: Any) -> Any:
        if not isinstance(S, Pool):
            return run(S, *rest)
        y, rows = run(load(S), *rest)
        return y, store(S, rows)

    return instead(name, says, call)


def stored_at(held: Pool, slots: Array, rows: Array) -> Array:
    """The pool after all rows have written, by any number of a slot."""
    pool = held.states.copy()
    pool[slots] = rows
    return pool


def row_is_slot(own: Array) -> Array:
    """Row r reads slot r. Bug class SLOT-SCOPE."""
    return np.where(own < 0, -1, np.arange(len(own)))


def clears_the_free(M_next: Array, write: Array | None) -> Array:
    """Slots that no row of the batch names are cleared, although waiting sequences are in them. Bug class SLOT-SCOPE."""
    if write is not None:
        M_next[np.setdiff1d(np.arange(len(M_next)), write)] = 0.0
    return M_next


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


def live_first(held: Pool) -> Array:
    """The live slots, then padding."""
    live = held.write[held.write >= 0]
    return np.concatenate([live, np.full(len(held.write) - len(live), -1)])


def rows_of_the_live(held: Pool) -> Array:
    slots = live_first(held)
    return np.where((slots >= 0)[:, None, None, None], held.states[slots], 0.0)


def stay(held: Any, after: Array, rows: Array) -> Array:
    """What a pool holds if these rows do not write; rows without a pool stay as they are anyway."""
    if isinstance(held, Pool):
        slots = held.write[rows & (held.write >= 0)]
        after[slots] = held.states[slots]
    return after


FAULTS = planted(
    *(
        (run, operation, bug_class, FLOAT64, WAYS)
        for run, operation, bug_class in (
            (
                through(
                    "padding_in_the_last_slot",
                    "The slot of padding, -1, is an index from the end: padding advances the last slot. Bug class PAD-SLOT.",
                    ssd.step,
                    lambda held: held.states[held.read],
                    lambda held, rows: stored_at(held, held.write, rows),
                ),
                "ssd.step",
                "PAD-SLOT",
            ),
            (
                through(
                    "padding_in_slot_zero",
                    "Padding reads and writes slot 0, as if that slot was always free. Bug class PAD-SLOT.",
                    delta.scan,
                    lambda held: held.states[np.maximum(held.read, 0)],
                    lambda held, rows: stored_at(held, np.maximum(held.write, 0), rows),
                ),
                "delta.scan",
                "PAD-SLOT",
            ),
            (
                through(
                    "writes_where_it_reads",
                    "The new state goes to the slot that was read, so that a shared prefix is advanced. Bug class "
                    "PREFIX-CKPT.",
                    ssd.scan,
                    store=lambda held, rows: written(held, held.read, rows),
                ),
                "ssd.scan",
                "PREFIX-CKPT",
            ),
            (before(read=row_is_slot, write=row_is_slot), "selective.scan_masked", "SLOT-SCOPE"),
            (after(M_next=clears_the_free), "conv.scan", "SLOT-SCOPE"),
            (KeepsTheSlots(), "conv.commit", "SLOT-SCOPE"),
            (
                through(
                    "counts_padding_in",
                    "The slots of a packed run are counted over its live sequences only. Bug class SLOT-SCOPE.",
                    partial(packed_scan, "ssd"),
                    rows_of_the_live,
                    lambda held, rows: written(held, live_first(held), rows),
                ),
                "ssd.scan_packed",
                "SLOT-SCOPE",
            ),
            (
                after(
                    "end_of_a_run_stays",
                    "Empty sequences at the end of a run have no program: their states do not come to the slots they are "
                    "written to. Bug class SLOT-SCOPE.",
                    S_next=lambda S, S_next, bounds, fresh: stay(S, S_next, np.equal(bounds[:-1], bounds[-1]) & ~fresh),
                ),
                "ssd.scan_packed",
                "SLOT-SCOPE",
            ),
            (
                after(
                    "row_without_a_token_stays",
                    "A row without a live token is passed over, and its state does not come to the slot it is written to. "
                    "Bug class SLOT-SCOPE.",
                    S_next=lambda S, S_next, live: stay(S, S_next, np.count_nonzero(live, axis=1) == 0),
                ),
                "ssd.scan_masked",
                "SLOT-SCOPE",
            ),
            (
                after(
                    "nothing_accepted_stays",
                    "A row that accepts nothing is passed over, and its window does not come to the slot it is written to. "
                    "Bug class SLOT-SCOPE.",
                    M_next=lambda M, M_next, advanced: stay(M, M_next, np.equal(advanced, 0)),
                ),
                "conv.commit",
                "SLOT-SCOPE",
            ),
            (
                after(
                    "no_path_stays",
                    "A row without a path is passed over, and its window does not come to the slot it is written to. "
                    "Bug class SLOT-SCOPE.",
                    M_next=lambda M, M_next, path: stay(M, M_next, path.max(axis=1) < 0),
                ),
                "conv.commit_path",
                "SLOT-SCOPE",
            ),
        )
    )
)
