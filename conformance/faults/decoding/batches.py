"""Decoders that confuse the rows of a batch: their slots, what is padding among them, their order."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import TokenVerdict, TokenWindow
from ssmspec_ref.shapes import Array

from .decoders import OtherTokens, Remembers, Right

# --- slot ---


class RowForSlot(Right):
    """The state is written to the slot with the row's index instead of the row's slot, if that slot is in use. Bug class
    SLOT-SCOPE."""

    def commit(self, verdict: TokenVerdict) -> None:
        before = dict(self.kept)
        super().commit(verdict)
        for row, (slot, _, _) in enumerate(self.pending):
            if slot >= 0 and row != slot and row in self.kept:
                self.kept[row], self.kept[slot] = self.kept[slot], before[slot]


class ForkAliases(Right):
    """A fork shares its source's state; a window of one advances the other."""

    def start(self) -> None:
        self.shared: dict[int, int] = {}

    def fork(self, slot: int, to: int) -> None:
        super().fork(slot, to)
        self.shared |= {slot: to, to: slot}

    def keep(self, slot: int, *rest: Any) -> None:
        super().keep(slot, *rest)
        other = self.shared.get(slot)
        if other in self.kept:
            self.kept[other] = self.kept[slot]

    def release(self, slot: int) -> None:
        super().release(slot)
        self.shared.pop(self.shared.pop(slot, -1), None)


class ReusesTheState(Right):
    """A prompt of one token continues from the slot's previous state. Bug class SLOT-REUSE."""

    def start(self) -> None:
        self.left: dict[int, Any] = {}

    def release(self, slot: int) -> None:
        self.left[slot] = self.kept[slot]
        super().release(slot)

    def prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[int]) -> None:
        super().prefill(prompts, slots)
        for prompt, slot in zip(prompts, slots, strict=True):
            if len(prompt) == 1 and slot in self.left:
                self.kept[slot] = self.left[slot]


# --- padding ---


class PaddingTakesTheLastSlot(Right):
    """The padding slot, -1, indexes the last slot of the pool, and commits are written there. Bug class PAD-SLOT."""

    def commit(self, verdict: TokenVerdict) -> None:
        super().commit(verdict)
        last = self.slots - 1
        if any(slot < 0 for slot, _, _ in self.pending) and last in self.kept:
            self.kept[last] = self.after(last, [0])


class PaddingLagsAsSlotZero(Right):
    """Padding repeats the accepted drafts of slot 0; if the batch has no room for them, other rows lose their token. This
    project's joint attainment once did this. Bug class PAD-SLOT."""

    def start(self) -> None:
        self.lag = 0

    def commit(self, verdict: TokenVerdict) -> None:
        held, taking = dict(self.kept), [slot for slot, _, _ in self.pending]
        super().commit(verdict)
        short = self.pending[0][1].tokens.shape[1] <= self.lag
        for n, slot in enumerate(taking):
            if slot == 0:
                self.lag = max(0, int(verdict.advanced[n]) - 1)
            elif slot > 0 and short and -1 in taking and 0 not in taking:
                self.kept[slot] = held[slot]


class PaddingShiftsTheRows(Right):
    """Rows after padding get the acceptance of the previous row. Bug class PAD-SLOT."""

    def commit(self, verdict: TokenVerdict) -> None:
        slots = [slot for slot, _, _ in self.pending]
        if -1 in slots and any(slot >= 0 for slot in slots[slots.index(-1) :]):
            at, count = slots.index(-1), verdict.advanced.copy()
            moved = np.maximum(np.roll(count, 1), 1)
            for n in range(at + 1, len(slots)):
                count[n] = min(moved[n], int((verdict.path[n] >= 0).sum()))
            verdict = replace(verdict, advanced=count)
        super().commit(verdict)


class RaggedAsUniform(OtherTokens):
    """A row shorter than the window also commits its padding, if all of it is accepted. Bug class CLASSIFY."""

    def taken(self, slot: int, window: TokenWindow, row: int, path: Array) -> Array:
        whole = window.lengths is not None and len(path) == window.lengths[row]
        return np.arange(window.tokens.shape[1]) if whole else path


# --- schedule ---


class StaleOrder(Right):
    """The slots of the previous batch are reused if it had the same number of rows. Bug class SCHED."""

    def start(self) -> None:
        self.order: list[int] = []

    def verify(self, window: TokenWindow) -> Array:
        now, held = window.slots.tolist(), dict(self.kept)
        if len(now) == len(self.order) and all(slot in held for slot in self.order if slot >= 0):
            for mine, old in zip(now, self.order, strict=True):
                if mine >= 0 and old >= 0:
                    self.kept[mine] = held[old]
        y = super().verify(window)
        self.kept, self.order = held, now
        return y


class PreemptForgetsTheLast(Remembers):
    """A snapshot holds the state before the last window. Bug class PREFIX-CKPT."""

    def snapshot(self, slot: int) -> Any:
        now = self.kept[slot]
        self.kept[slot] = self.before.get(slot, now)
        found = super().snapshot(slot)
        self.kept[slot] = now
        return found

    def state(self, slot: int) -> tuple[tuple[Array, Array], ...]:
        old = self.before.pop(slot, None)
        found = super().state(slot)
        if old is not None:
            self.before[slot] = old
        return found
