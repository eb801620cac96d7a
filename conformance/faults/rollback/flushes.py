"""Rings of a batch that are flushed wrongly: one row while others hold theirs, or for a window that takes nothing."""

from dataclasses import fields
from typing import Any

import numpy as np

from ssmspec_ref.contract import Limits
from ssmspec_ref.layers.recurrences import RECURRENCES
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array, Lengths, Mask, Parents, Path

from ...adapters.reference_parts.backtracking import AT_ONCE
from ..fault import planted


class Entries:
    """A right ring of 64 entries, with a checkpoint and a cursor for every row: a row that a window would overflow is flushed
    before the window is verified."""

    entries = 64
    late = 0
    """By how many entries a flush comes too late."""

    def __init__(self, S: Array, params: Any) -> None:
        self.S, self.params, self.cursor = S.copy(), params, np.zeros(len(S), dtype=np.int64)
        self.ring: Any = None
        self.start()

    def start(self) -> None:
        """What a fault keeps beside."""

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        self.window, self.rule = window, RECURRENCES.owner("window", window).definition
        if self.ring is None:
            self.ring = each(lambda a: np.zeros((len(a), self.entries, *a.shape[2:])), window)
        tokens = getattr(window, fields(window)[0].name).shape[1]
        self.flush(self.cursor + tokens > self.entries + self.late)
        rows = (each(lambda a, b=b: a[b : b + 1], window) for b in range(len(self.S)))
        return np.concatenate([self.rule.scan(self.replayed(b), row, self.params)[0] for b, row in enumerate(rows)])

    def replayed(self, b: int) -> Array:
        """The state of a row after its checkpoint and its ring, with a row axis."""
        begin, held = self.S[b : b + 1], int(self.cursor[b])
        if held == 0:
            return begin
        return np.asarray(self.rule.scan(begin, each(lambda a: a[b : b + 1, :held], self.ring), self.params)[1])

    def flush(self, due: Mask) -> None:
        for b in np.flatnonzero(due):
            self.S[b] = self.replayed(int(b))[0]
            self.cursor[b] = 0

    def commit(self, advanced: Lengths, path: Path) -> None:
        for b, count in enumerate(advanced):
            held = int(self.cursor[b])
            for field in fields(self.ring):
                kept, came = getattr(self.ring, field.name), getattr(self.window, field.name)
                if came is not None:
                    kept[b, held : held + count] = came[b, path[b, :count]]
        self.cursor = self.cursor + advanced

    def state(self) -> Array:
        return np.concatenate([self.replayed(b) for b in range(len(self.S))])


class OneRowIsFlushed(Entries):
    """Of the rows that are due only the first is flushed, but the cursors of all of them are reset."""

    def flush(self, due: Mask) -> None:
        super().flush(due & (np.cumsum(due) == 1))
        self.cursor = np.where(due, 0, self.cursor)


class AllCursorsBeginAnew(Entries):
    """If one row is due, its checkpoint is advanced, but the cursors of all rows are reset."""

    def flush(self, due: Mask) -> None:
        super().flush(due)
        self.cursor = np.where(due.any(), 0, self.cursor)


class RestsKeepTheirCursor(Entries):
    """The checkpoint moves when a window is verified, the cursor when it is committed: where nothing is, the ring is replayed
    on what it was flushed into."""

    def flush(self, due: Mask) -> None:
        self.before, self.due = self.cursor.copy(), due
        super().flush(due)

    def commit(self, advanced: Lengths, path: Path) -> None:
        super().commit(advanced, path)
        self.cursor = np.where(self.due & (advanced == 0), self.before, self.cursor)


WINDOWS = Limits(sizes={"t": (1, Entries.entries)}, reason="fits its ring")
FAULTS = planted(
    (OneRowIsFlushed, "ssd.buffered_step", "REPLAY", AT_ONCE),
    (OneRowIsFlushed, "delta.buffered_step", "REPLAY", AT_ONCE),
    (AllCursorsBeginAnew, "ssd.buffered_verify", "REPLAY", AT_ONCE, WINDOWS),
    (AllCursorsBeginAnew, "delta.buffered_verify", "REPLAY", AT_ONCE, WINDOWS),
    (RestsKeepTheirCursor, "ssd.buffered_verify", "REPLAY", AT_ONCE, WINDOWS),
    (RestsKeepTheirCursor, "delta.buffered_verify", "REPLAY", AT_ONCE, WINDOWS),
)
