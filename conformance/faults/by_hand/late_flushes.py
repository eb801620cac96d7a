"""Windows whose accepted tokens are replayed twice, and rings that are flushed late or decay with other entries."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import ssd
from ssmspec_ref.contract import FLOAT64, Limits
from ssmspec_ref.records import each, where
from ssmspec_ref.shapes import Array, Lengths, Mask, Parents, Path

from ...adapters.reference_parts.backtracking import AT_ONCE
from ..fault import planted
from ..windows import Replayed
from .chunks import ssd_decay
from .slot_order import Turning, fits, of_entries


class StaysPending(Replayed):
    """What was accepted stays pending after it was replayed if the next window accepts nothing, and is replayed twice."""

    when_verified = False

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        y = super().verify(window, parents)
        assert self.inner is not None
        if self.when_verified:
            self.inner.kept = replace(self.inner.kept, state=self.inner.pending.state)
        return y

    def commit(self, advanced: Lengths, path: Path) -> None:
        assert self.inner is not None
        pending = self.inner.kept.cache
        super().commit(advanced, path)
        if pending is not None:
            self.inner.kept = replace(self.inner.kept, cache=where(advanced > 0, self.inner.kept.cache, pending))


class StaysPendingWhenVerified(StaysPending):
    """What was accepted stays pending until a window accepts something, and every window that is verified replays it."""

    when_verified = True


class FlushesLate(Turning):
    """A ring of 12 entries is flushed one entry late: a window that is accepted whole overwrites the oldest entry."""

    entries, late = 12, 1

    def commit(self, advanced: Lengths, path: Path) -> None:
        super().commit(advanced, path)
        over = np.maximum(self.cursor - self.entries, 0)
        self.cursor, self.origin = self.cursor - over, (self.origin + over) % self.entries


class StaleEntriesDecay(Turning):
    """The checkpoint is decayed by all entries of a ring of 12, those from before the last flush included."""

    entries = 12

    def start(self) -> None:
        super().start()
        self.written = np.zeros((len(self.S), self.entries), dtype=bool)

    def replayed(self, b: int) -> Array:
        right, stale = super().replayed(b), self.written[b].copy()
        stale[self.slots(b)] = False
        if not stale.any():
            return right
        held, old = (self.decay(b, at) for at in (self.slots(b), np.flatnonzero(stale)))
        return np.asarray(right + held * (old - 1) * self.S[b : b + 1])

    def decay(self, b: int, at: Array) -> Array:
        """What some entries of a row leave of a state."""
        if not at.size:
            return np.ones(1)
        return np.asarray(np.exp(ssd_decay(each(lambda a: a[b : b + 1, at], self.ring), self.params).sum(axis=1)))

    def commit(self, advanced: Lengths, path: Path) -> None:
        super().commit(advanced, path)
        for b in range(len(advanced)):
            self.written[b, self.slots(b)] = True


class DecaysInItsOwnWindow(Turning):
    """An entry of the ring is decayed by later entries of its own window only, not by those of later windows."""

    def start(self) -> None:
        super().start()
        self.counts: list[list[int]] = [[] for _ in self.S]

    def replayed(self, b: int) -> Array:
        S, first = self.S[b : b + 1], 0
        made, slots = np.zeros_like(S), self.slots(b)
        for count in self.counts[b]:
            entries = each(lambda a, at=slots[first : first + count]: a[b : b + 1, at], self.ring)
            made = made + ssd.scan(np.zeros_like(S), entries, self.params)[1]
            S = np.exp(ssd_decay(entries, self.params).sum(axis=1)) * S
            first += count
        return np.asarray(S + made)

    def flush(self, due: Mask) -> None:
        super().flush(due)
        for b in np.flatnonzero(due):
            self.counts[b] = []

    def commit(self, advanced: Lengths, path: Path) -> None:
        super().commit(advanced, path)
        for b, count in enumerate(advanced):
            self.counts[b] += [int(count)] if count else []


TWICE = Limits({"verify": ("once", "twice")})
LATE: tuple[type[Turning], ...] = (FlushesLate, *of_entries(FlushesLate, 16, 24, 32))
DECAYS: tuple[type[Turning], ...] = (StaleEntriesDecay, *of_entries(StaleEntriesDecay, 16, 32), DecaysInItsOwnWindow)
FAULTS = planted(
    *(
        (build, f"{rule}.verify_replay", "REPLAY", FLOAT64, TWICE)
        for rule in ("ssd", "delta")
        for build in (StaysPending, StaysPendingWhenVerified)
    ),
    *(
        (build, f"{rule}.buffered_verify", "REPLAY", AT_ONCE, replace(fits(build), options=TWICE.options))
        for rule in ("ssd", "delta")
        for build in LATE
    ),
    *((build, "ssd.buffered_verify", "REPLAY", AT_ONCE, replace(fits(build), options=TWICE.options)) for build in DECAYS),
)
