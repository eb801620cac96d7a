"""Decoders that mix up what happens at the same time: forks and departures beside a window, full batches, padding alone."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import FLOAT64, Adapter, Decoding, TokenVerdict, TokenWindow
from ssmspec_ref.shapes import Array

from .decoders import Remembers, Right

ROWS = 3


class Disturbed(Right):
    """A call between verify and commit discards the window's drafts."""

    def start(self) -> None:
        self.waits = self.disturbed = False

    def verify(self, window: TokenWindow) -> Array:
        self.waits, self.disturbed = True, False
        return super().verify(window)

    def commit(self, verdict: TokenVerdict) -> None:
        kept = np.minimum(verdict.advanced, 1) if self.disturbed else verdict.advanced
        self.waits = False
        super().commit(replace(verdict, advanced=kept))


class ForkSpoilsTheWindow(Disturbed):
    """A fork of another sequence overwrites the buffer of drafts that are not yet committed. Bug class SCHED."""

    def fork(self, slot: int, to: int) -> None:
        super().fork(slot, to)
        self.disturbed = self.waits


class ReleaseSpoilsTheWindow(Disturbed):
    """Releasing a sequence between verify and commit discards the drafts of the others. Bug class SCHED."""

    def release(self, slot: int) -> None:
        super().release(slot)
        self.disturbed = self.waits


class FlushesTheFirst(Remembers):
    """If several sequences are flushed at once, only the first is; the others lose their last window."""

    def flush(self, slots: Sequence[int]) -> None:
        super().flush(slots[:1])
        for slot in slots[1:]:
            self.kept[slot] = self.before.pop(slot, self.kept[slot])


class ThreeRowsAtMost(Right):
    """Rows from the fourth on commit only their root."""

    def commit(self, verdict: TokenVerdict) -> None:
        few = np.arange(len(verdict.advanced)) < ROWS
        super().commit(replace(verdict, advanced=np.where(few, verdict.advanced, np.minimum(verdict.advanced, 1))))


class PaddingAloneIsSlotZero(Right):
    """A window of padding only, as in the warm-up of a graph, commits to slot 0. Bug class PAD-SLOT."""

    def commit(self, verdict: TokenVerdict) -> None:
        super().commit(verdict)
        if all(slot < 0 for slot, _, _ in self.pending) and 0 in self.kept:
            self.begin(0, self.after(0, [0]), self.tokens[0])


FAULTS: tuple[type[Right], ...] = (
    ForkSpoilsTheWindow,
    ReleaseSpoilsTheWindow,
    FlushesTheFirst,
    ThreeRowsAtMost,
    PaddingAloneIsSlotZero,
)
"""The small examples of stateful testing seldom reach these; a law of decoders finds each."""


def adapter() -> Adapter:
    made: list[Any] = [Decoding(f.__name__, f, FLOAT64, trees=True) for f in FAULTS]
    return Adapter("faulty meanwhile", "1", decodings=tuple(made))
