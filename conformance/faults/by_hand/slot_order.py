"""Rings whose entries are read in another order than they came, or kept with one group; and snapshots of another count."""

from dataclasses import fields, replace

import numpy as np

from ssmspec_ref.backtrack import snapshots
from ssmspec_ref.contract import Limits
from ssmspec_ref.records import each, where
from ssmspec_ref.shapes import Array, Lengths, Mask, Path

from ...adapters.reference_parts.backtracking import AT_ONCE
from ..fault import planted
from ..rollback.flushes import Entries
from ..windows import Windows


class Turning(Entries):
    """A right ring that continues after the entry that was flushed last, and so wraps around."""

    def start(self) -> None:
        self.origin = np.zeros_like(self.cursor)

    def slots(self, b: int) -> Array:
        """The places of a row's entries in the ring, from the oldest on."""
        return np.asarray((self.origin[b] + np.arange(self.cursor[b])) % self.entries)

    def replayed(self, b: int) -> Array:
        begin, at = self.S[b : b + 1], self.slots(b)
        if not at.size:
            return begin
        return np.asarray(self.rule.scan(begin, each(lambda a: a[b : b + 1, at], self.ring), self.params)[1])

    def flush(self, due: Mask) -> None:
        held = np.where(due, self.cursor, 0)
        super().flush(due)
        self.origin = (self.origin + held) % self.entries

    def commit(self, advanced: Lengths, path: Path) -> None:
        for b, count in enumerate(advanced):
            at = (self.origin[b] + self.cursor[b] + np.arange(count)) % self.entries
            for field in fields(self.ring):
                kept, came = getattr(self.ring, field.name), getattr(self.window, field.name)
                if came is not None:
                    kept[b, at] = came[b, path[b, :count]]
        self.cursor = self.cursor + advanced


class FoldsInSlotOrder(Turning):
    """A ring of 64 entries that wraps around is replayed in the order of its slots, not from the oldest entry on."""

    def slots(self, b: int) -> Array:
        return np.sort(super().slots(b))


def of_entries(build: type[Turning], *numbers: int) -> tuple[type[Turning], ...]:
    """The same ring with other numbers of entries, which its name and its text say."""
    text = build.__doc__ or ""
    return tuple(
        type(f"{build.__name__}Of{n}", (build,), {"entries": n, "__doc__": text.replace(f" {build.entries}", f" {n}")})
        for n in numbers
    )


class RingKeepsTheFirstGroup(Turning):
    """The entries of the ring keep B, or the key, of group 0 for every head."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        window = self.window
        name = "B" if hasattr(window, "B") else "k"
        whole = getattr(window, name)
        self.window = replace(window, **{name: np.repeat(whole[:, :, :1], whole.shape[2], axis=2)})
        super().commit(advanced, path)


class SnapshotOfTheRank(Windows):
    """A row takes the snapshot of another row: rows are counted among those that accept a token, as if no row was skipped."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        assert self.inner is not None
        held, kept = self.inner.kept, self.inner.pending.snapshots
        super().commit(advanced, path)
        rank = np.maximum(np.cumsum(advanced > 0) - 1, 0)
        self.inner.kept = where(advanced > 0, snapshots.pick(kept, path.max(axis=1) + 1, rank), held)


class SnapshotOfTheRow(Windows):
    """The snapshot is chosen by the number of the row, not by what the row accepted."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        assert self.inner is not None
        kept = self.inner.pending.snapshots
        super().commit(advanced, path)
        self.inner.kept = snapshots.pick(kept, np.minimum(np.arange(len(path)), path.shape[1]))


def fits(build: type[Entries]) -> Limits:
    return Limits(sizes={"t": (1, build.entries)}, reason="fits its ring")


ROUND = (*of_entries(FoldsInSlotOrder, 12, 16, 24, 32), FoldsInSlotOrder)
FAULTS = planted(
    *((build, f"{rule}.buffered_verify", "REPLAY", AT_ONCE, fits(build)) for rule in ("ssd", "delta") for build in ROUND),
    *((RingKeepsTheFirstGroup, f"{rule}.buffered_verify", "GROUP-MAP", AT_ONCE, fits(Turning)) for rule in ("ssd", "delta")),
    *(
        (build, f"{rule}.verify_snapshots", "ACCEPT-IDX")
        for rule in ("ssd", "delta")
        for build in (SnapshotOfTheRank, SnapshotOfTheRow)
    ),
)
