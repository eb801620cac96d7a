"""Decoders that mix up what happens at the same time: forks and departures beside a window, full batches, padding alone."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import FLOAT64, Adapter, Decoding, TokenVerdict, TokenWindow
from ssmspec_ref.model import Model
from ssmspec_ref.shapes import Array

from .decoders import Remembers, Right

ROWS = 3


class Disturbed(Right):
    """Something between a window and its verdict leaves only the roots of the window."""

    def __init__(self, model: Model, slots: int, cache: int, window: int) -> None:
        super().__init__(model, slots, cache, window)
        self.waits = self.disturbed = False

    def verify(self, window: TokenWindow) -> Array:
        self.waits, self.disturbed = True, False
        return super().verify(window)

    def commit(self, verdict: TokenVerdict) -> None:
        kept = np.minimum(verdict.advanced, 1) if self.disturbed else verdict.advanced
        self.waits = False
        super().commit(replace(verdict, advanced=kept))


class ForkSpoilsTheWindow(Disturbed):
    """A fork of another sequence takes the place where drafts wait for their verdict. Bug class SCHED."""

    def fork(self, slot: int, to: int) -> None:
        super().fork(slot, to)
        self.disturbed = self.waits


class ReleaseSpoilsTheWindow(Disturbed):
    """A sequence that leaves between a window and its verdict takes the drafts of the others along. Bug class SCHED."""

    def release(self, slot: int) -> None:
        super().release(slot)
        self.disturbed = self.waits


class FlushesTheFirst(Remembers):
    """Of several sequences that are flushed at once the first one is, the others lose their last window."""

    def flush(self, slots: Sequence[int]) -> None:
        super().flush(slots[:1])
        for slot in slots[1:]:
            self.kept[slot] = self.before.pop(slot, self.kept[slot])


class ThreeRowsAtMost(Right):
    """Of rows past the third only the root is committed."""

    def commit(self, verdict: TokenVerdict) -> None:
        few = np.arange(len(verdict.advanced)) < ROWS
        super().commit(replace(verdict, advanced=np.where(few, verdict.advanced, np.minimum(verdict.advanced, 1))))


class PaddingAloneIsSlotZero(Right):
    """A window of padding alone, as a graph is warmed up with, commits into slot 0. Bug class PAD-SLOT."""

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
"""The machine's small examples seldom meet these, or never; a law of decoders finds each."""


def adapter() -> Adapter:
    made: list[Any] = [Decoding(f.__name__, f, FLOAT64, trees=True) for f in FAULTS]
    return Adapter("faulty meanwhile", "1", decodings=tuple(made))
