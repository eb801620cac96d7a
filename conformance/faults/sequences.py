"""Decoders that lose, keep or confuse what is not the state of one sequence in one window: faults that need a history.

Each is the reference's snapshots but for one thing, named by what known engines got wrong. `CLASSES` sorts them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import model as lm
from ssmspec_ref.backtrack import snapshots
from ssmspec_ref.contract import FLOAT64, Adapter, Decoding, TokenVerdict, TokenWindow
from ssmspec_ref.mixer import MixerState
from ssmspec_ref.model import Model, ModelState
from ssmspec_ref.shapes import Array

from ..adapters.sequences import PathDecoder


class Right(PathDecoder):
    """A right one."""

    def __init__(self, model: Model, slots: int, cache: int, window: int) -> None:
        super().__init__(snapshots, model, slots, cache, window)
        self.slots = slots

    def after(self, slot: int, tokens: Sequence[int]) -> ModelState:
        """The state of a slot moved on by tokens."""
        state = self.snapshot(slot)[0]
        return lm.scan(state, np.array([tokens]), self.model)[1] if len(tokens) else state


# --- rollback ---


class KeepsConvWindow(Right):
    """Rejected inputs stay in the windows of the convolutions. vllm-project/vllm#50272."""

    def keep(self, slot: int, window: TokenWindow, pending: Any, row: int, path: Array, root: int) -> None:
        whole = self.after(slot, window.tokens[row].tolist())
        super().keep(slot, window, pending, row, path, root)
        self.kept[slot] = tuple(
            replace(mine, M=all_.M) if isinstance(all_, MixerState) and window.parents is None else mine
            for mine, all_ in zip(self.kept[slot], whole, strict=True)
        )


class KeepsTheFirstDraft(Right):
    """Where no draft is accepted, the state behind the first one stays."""

    def keep(self, slot: int, window: TokenWindow, pending: Any, row: int, path: Array, root: int) -> None:
        wrong = len(path) == 1 and window.tokens.shape[1] > 1 and (window.lengths is None or window.lengths[row] > 1)
        state = self.after(slot, window.tokens[row, :2].tolist()) if wrong else None
        super().keep(slot, window, pending, row, path, root)
        if state is not None:
            self.begin(slot, state, self.tokens[slot])


# --- commit ---


class LosesLastToken(Right):
    """Of two or more tokens the last is not committed."""

    def keep(self, slot: int, window: TokenWindow, pending: Any, row: int, path: Array, root: int) -> None:
        state = self.after(slot, window.tokens[row, path[:-1]].tolist())
        super().keep(slot, window, pending, row, path, root)
        if len(path) > 1:
            self.begin(slot, state, self.tokens[slot])


class SettlesWhenRead(Right):
    """What was accepted waits until the state is read; the next window does not ask for it."""

    def __init__(self, model: Model, slots: int, cache: int, window: int) -> None:
        super().__init__(model, slots, cache, window)
        self.due: dict[int, Any] = {}

    def keep(self, slot: int, window: TokenWindow, pending: Any, row: int, path: Array, root: int) -> None:
        held = self.kept[slot]
        super().keep(slot, window, pending, row, path, root)
        self.due[slot], self.kept[slot] = self.kept[slot], held

    def snapshot(self, slot: int) -> Any:
        self.kept[slot] = self.due.pop(slot, self.kept[slot])
        return super().snapshot(slot)

    def begin(self, slot: int, state: ModelState, tokens: tuple[int, ...]) -> None:
        self.due.pop(slot, None)
        super().begin(slot, state, tokens)


class FlushLosesTheLast(Right):
    """An early flush folds all but the last window into the checkpoint."""

    def __init__(self, model: Model, slots: int, cache: int, window: int) -> None:
        super().__init__(model, slots, cache, window)
        self.before: dict[int, Any] = {}

    def keep(self, slot: int, window: TokenWindow, pending: Any, row: int, path: Array, root: int) -> None:
        self.before[slot] = self.kept[slot]
        super().keep(slot, window, pending, row, path, root)

    def flush(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.kept[slot] = self.before.pop(slot, self.kept[slot])

    def begin(self, slot: int, state: ModelState, tokens: tuple[int, ...]) -> None:
        self.before.pop(slot, None)
        super().begin(slot, state, tokens)


# --- cursor ---


class OneCursor(Right):
    """Every row advances by what the first one accepted. Bug class ACCEPT-IDX."""

    def commit(self, verdict: TokenVerdict) -> None:
        whole = (verdict.path >= 0).sum(axis=1)
        first = int(verdict.advanced[0]) or int(verdict.advanced.max())
        super().commit(replace(verdict, advanced=np.minimum(np.maximum(verdict.advanced, 0) * 0 + first, whole)))


class StepReadsTheOldColumn(Right):
    """A step without drafts reads the state of the step before. vllm-project/vllm#52942."""

    def __init__(self, model: Model, slots: int, cache: int, window: int) -> None:
        super().__init__(model, slots, cache, window)
        self.before: dict[int, Any] = {}

    def verify(self, window: TokenWindow) -> Array:
        held = dict(self.kept)
        if window.tokens.shape[1] == 1:
            self.kept |= {slot: old for slot, old in self.before.items() if slot in held}
        y = super().verify(window)
        self.kept = held
        return y

    def keep(self, slot: int, window: TokenWindow, pending: Any, row: int, path: Array, root: int) -> None:
        self.before[slot] = self.kept[slot]
        super().keep(slot, window, pending, row, path, root)

    def begin(self, slot: int, state: ModelState, tokens: tuple[int, ...]) -> None:
        self.before.pop(slot, None)
        super().begin(slot, state, tokens)


class RingOfOneWindow(Right):
    """A ring has room for one window and is not flushed: what is accepted of the second is lost. Bug class REPLAY."""

    def __init__(self, model: Model, slots: int, cache: int, window: int) -> None:
        super().__init__(model, slots, cache, window)
        self.full: set[int] = set()

    def keep(self, slot: int, window: TokenWindow, pending: Any, row: int, path: Array, root: int) -> None:
        held = self.kept[slot]
        super().keep(slot, window, pending, row, path, root)
        if slot in self.full:
            self.kept[slot] = held
        self.full.add(slot)

    def begin(self, slot: int, state: ModelState, tokens: tuple[int, ...]) -> None:
        self.full.discard(slot)
        super().begin(slot, state, tokens)


# --- slot ---


class RowForSlot(Right):
    """The state is written to the row's number instead of the row's slot, where that slot is taken. Bug class SLOT-SCOPE."""

    def commit(self, verdict: TokenVerdict) -> None:
        before = dict(self.kept)
        super().commit(verdict)
        for row, (slot, _, _) in enumerate(self.pending):
            if slot >= 0 and row != slot and row in self.kept:
                self.kept[row], self.kept[slot] = self.kept[slot], before[slot]


class ForkAliases(Right):
    """A fork shares its source's state; a window of the one moves the other."""

    def __init__(self, model: Model, slots: int, cache: int, window: int) -> None:
        super().__init__(model, slots, cache, window)
        self.shared: dict[int, int] = {}

    def fork(self, slot: int, to: int) -> None:
        super().fork(slot, to)
        self.shared |= {slot: to, to: slot}

    def keep(self, slot: int, window: TokenWindow, pending: Any, row: int, path: Array, root: int) -> None:
        super().keep(slot, window, pending, row, path, root)
        other = self.shared.get(slot)
        if other in self.kept:
            self.kept[other] = self.kept[slot]

    def release(self, slot: int) -> None:
        super().release(slot)
        self.shared.pop(self.shared.pop(slot, -1), None)


class ReusesTheState(Right):
    """A prompt of one token goes on from what the slot held before. Bug class SLOT-REUSE."""

    def __init__(self, model: Model, slots: int, cache: int, window: int) -> None:
        super().__init__(model, slots, cache, window)
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
    """The slot of padding, -1, is the last of the pool: what it commits lands there. Bug class PAD-SLOT."""

    def commit(self, verdict: TokenVerdict) -> None:
        super().commit(verdict)
        last = self.slots - 1
        if any(slot < 0 for slot, _, _ in self.pending) and last in self.kept:
            self.kept[last] = self.after(last, [0])


class PaddingShiftsTheRows(Right):
    """Rows behind padding take the verdict of the row before theirs. Bug class PAD-SLOT."""

    def commit(self, verdict: TokenVerdict) -> None:
        slots = [slot for slot, _, _ in self.pending]
        if -1 in slots and any(slot >= 0 for slot in slots[slots.index(-1) :]):
            at, count = slots.index(-1), verdict.advanced.copy()
            moved = np.maximum(np.roll(count, 1), 1)
            for n in range(at + 1, len(slots)):
                count[n] = min(moved[n], int((verdict.path[n] >= 0).sum()))
            verdict = replace(verdict, advanced=count)
        super().commit(verdict)


class RaggedAsUniform(Right):
    """A row that is shorter than the window commits its padding too, where all of it is accepted. Bug class CLASSIFY."""

    def keep(self, slot: int, window: TokenWindow, pending: Any, row: int, path: Array, root: int) -> None:
        state = self.after(slot, window.tokens[row].tolist())
        super().keep(slot, window, pending, row, path, root)
        if window.lengths is not None and len(path) == window.lengths[row] < window.tokens.shape[1]:
            self.begin(slot, state, self.tokens[slot])


# --- schedule ---


class StaleOrder(Right):
    """The slots of the batch before are used again where it had as many rows. Bug class SCHED."""

    def __init__(self, model: Model, slots: int, cache: int, window: int) -> None:
        super().__init__(model, slots, cache, window)
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


class PreemptForgetsTheLast(Right):
    """What is taken out is the state before the last window. Bug class PREFIX-CKPT."""

    def __init__(self, model: Model, slots: int, cache: int, window: int) -> None:
        super().__init__(model, slots, cache, window)
        self.before: dict[int, Any] = {}

    def keep(self, slot: int, window: TokenWindow, pending: Any, row: int, path: Array, root: int) -> None:
        self.before[slot] = super().snapshot(slot)[0]
        super().keep(slot, window, pending, row, path, root)

    def begin(self, slot: int, state: ModelState, tokens: tuple[int, ...]) -> None:
        self.before.pop(slot, None)
        super().begin(slot, state, tokens)

    def state(self, slot: int) -> tuple[tuple[Array, Array], ...]:
        old = self.before.pop(slot, None)
        found = super().state(slot)
        if old is not None:
            self.before[slot] = old
        return found

    def snapshot(self, slot: int) -> Any:
        state, tokens = super().snapshot(slot)
        return self.before.get(slot, state), tokens


# --- tree commit ---


class PathAsPrefix(Right):
    """Of a tree the first nodes are committed, not those of the path. Bug class TREE-COMMIT."""

    def keep(self, slot: int, window: TokenWindow, pending: Any, row: int, path: Array, root: int) -> None:
        state = self.after(slot, window.tokens[row, : len(path)].tolist())
        super().keep(slot, window, pending, row, path, root)
        if window.parents is not None:
            self.begin(slot, state, self.tokens[slot])


class LastChild(Right):
    """Behind a node its last child is committed instead of the one that was accepted. Bug class TREE-TOPO."""

    def keep(self, slot: int, window: TokenWindow, pending: Any, row: int, path: Array, root: int) -> None:
        taken = path.copy()
        if window.parents is not None and len(path) > 1:
            taken[-1] = np.flatnonzero(window.parents[row] == path[-2])[-1]
        state = self.after(slot, window.tokens[row, taken].tolist())
        super().keep(slot, window, pending, row, path, root)
        self.begin(slot, state, self.tokens[slot])


# --- stop ---


class IgnoresTheCut(Right):
    """A run that is cut commits all that was accepted. Bug class STOP."""

    def commit(self, verdict: TokenVerdict) -> None:
        self.whole = (verdict.path >= 0).sum(axis=1), verdict.path
        super().commit(verdict)

    def keep(self, slot: int, window: TokenWindow, pending: Any, row: int, path: Array, root: int) -> None:
        n = [s for s, _, _ in self.pending].index(slot)
        every = self.whole[1][n][: self.whole[0][n]]
        state = self.after(slot, window.tokens[row, every].tolist())
        super().keep(slot, window, pending, row, path, root)
        self.begin(slot, state, self.tokens[slot])


class CutsBeforeTheRoot(Right):
    """A run that is cut to its first token commits nothing. Bug class STOP."""

    def commit(self, verdict: TokenVerdict) -> None:
        held = dict(self.kept)
        super().commit(verdict)
        for n, (slot, _, _) in enumerate(self.pending):
            if slot >= 0 and verdict.advanced[n] == 1 < (verdict.path[n] >= 0).sum():
                self.kept[slot] = held[slot]


CLASSES: dict[str, tuple[type[Right], ...]] = {
    "rollback": (KeepsConvWindow, KeepsTheFirstDraft),
    "commit": (LosesLastToken, SettlesWhenRead, FlushLosesTheLast),
    "cursor": (OneCursor, StepReadsTheOldColumn, RingOfOneWindow),
    "slot": (RowForSlot, ForkAliases, ReusesTheState),
    "padding": (PaddingTakesTheLastSlot, PaddingShiftsTheRows, RaggedAsUniform),
    "schedule": (StaleOrder, PreemptForgetsTheLast),
    "tree commit": (PathAsPrefix, LastChild),
    "stop": (IgnoresTheCut, CutsBeforeTheRoot),
}


def adapter() -> Adapter:
    """A decoding for each fault, and one without."""
    every: list[type[Right]] = [Right, *(fault for faults in CLASSES.values() for fault in faults)]
    made = [Decoding(fault.__name__, fault, FLOAT64, trees=True) for fault in every]
    return Adapter("faulty sequences", "1", decodings=tuple(made))
