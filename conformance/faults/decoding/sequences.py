"""Decoders that lose, keep or confuse what is not the state of one sequence in one window: faults that need a history.

Each is the reference's snapshots but for one thing, named by what known engines got wrong. `CLASSES` sorts them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import FLOAT64, Adapter, Decoding, TokenVerdict, TokenWindow
from ssmspec_ref.layers.mixer import MixerState
from ssmspec_ref.model import ModelState
from ssmspec_ref.shapes import Array

from .batches import (
    ForkAliases,
    PaddingLagsAsSlotZero,
    PaddingShiftsTheRows,
    PaddingTakesTheLastSlot,
    PreemptForgetsTheLast,
    RaggedAsUniform,
    ReusesTheState,
    RowForSlot,
    StaleOrder,
)
from .decoders import OtherTokens, Remembers, Right

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


class KeepsTheFirstDraft(OtherTokens):
    """If no draft is accepted, the state after the first draft is kept."""

    def taken(self, slot: int, window: TokenWindow, row: int, path: Array) -> Array:
        drafted = window.tokens.shape[1] > 1 and (window.lengths is None or window.lengths[row] > 1)
        return np.arange(2) if len(path) == 1 and drafted else path


# --- commit ---


class LosesLastToken(OtherTokens):
    """If two or more tokens are accepted, the last is not committed."""

    def taken(self, slot: int, window: TokenWindow, row: int, path: Array) -> Array:
        return path[:-1] if len(path) > 1 else path


class SettlesWhenRead(Right):
    """Accepted tokens are applied when the state is read; the next window ignores them."""

    def start(self) -> None:
        self.due: dict[int, Any] = {}

    def keep(self, slot: int, *rest: Any) -> None:
        held = self.kept[slot]
        super().keep(slot, *rest)
        self.due[slot], self.kept[slot] = self.kept[slot], held

    def snapshot(self, slot: int) -> Any:
        self.kept[slot] = self.due.pop(slot, self.kept[slot])
        return super().snapshot(slot)

    def begin(self, slot: int, state: ModelState, tokens: tuple[int, ...]) -> None:
        self.due.pop(slot, None)
        super().begin(slot, state, tokens)


class FlushLosesTheLast(Remembers):
    """An early flush folds all but the last window into the checkpoint."""

    def flush(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.kept[slot] = self.before.pop(slot, self.kept[slot])


# --- cursor ---


class OneCursor(Right):
    """Every row advances by the number that the first row accepted. Bug class ACCEPT-IDX."""

    def commit(self, verdict: TokenVerdict) -> None:
        whole = (verdict.path >= 0).sum(axis=1)
        first = int(verdict.advanced[0]) or int(verdict.advanced.max())
        super().commit(replace(verdict, advanced=np.minimum(first, whole)))


class StepReadsTheOldColumn(Remembers):
    """A step without drafts reads the state of the previous step. vllm-project/vllm#52942."""

    def verify(self, window: TokenWindow) -> Array:
        held = dict(self.kept)
        if window.tokens.shape[1] == 1:
            self.kept |= {slot: old for slot, old in self.before.items() if slot in held}
        y = super().verify(window)
        self.kept = held
        return y


class RingOfOneWindow(Right):
    """A ring has room for one window and is not flushed: accepted tokens of the second are lost. Bug class REPLAY."""

    def start(self) -> None:
        self.full: set[int] = set()

    def keep(self, slot: int, *rest: Any) -> None:
        held = self.kept[slot]
        super().keep(slot, *rest)
        if slot in self.full:
            self.kept[slot] = held
        self.full.add(slot)

    def begin(self, slot: int, state: ModelState, tokens: tuple[int, ...]) -> None:
        self.full.discard(slot)
        super().begin(slot, state, tokens)


# --- tree commit ---


class PathAsPrefix(OtherTokens):
    """The first nodes of a tree are committed instead of those of the path. Bug class TREE-COMMIT."""

    def taken(self, slot: int, window: TokenWindow, row: int, path: Array) -> Array:
        return path if window.parents is None else np.arange(len(path))


class LastChild(OtherTokens):
    """The last child of a node is committed instead of the accepted one. Bug class TREE-TOPO."""

    def taken(self, slot: int, window: TokenWindow, row: int, path: Array) -> Array:
        if window.parents is None or len(path) == 1:
            return path
        return np.append(path[:-1], np.flatnonzero(window.parents[row] == path[-2])[-1])


# --- stop ---


class IgnoresTheCut(OtherTokens):
    """A run that is cut commits all accepted tokens. Bug class STOP."""

    def commit(self, verdict: TokenVerdict) -> None:
        self.whole = verdict.path
        super().commit(verdict)

    def taken(self, slot: int, window: TokenWindow, row: int, path: Array) -> Array:
        whole = self.whole[[s for s, _, _ in self.pending].index(slot)]
        return whole[: (whole >= 0).sum()]


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
    "padding": (PaddingTakesTheLastSlot, PaddingLagsAsSlotZero, PaddingShiftsTheRows, RaggedAsUniform),
    "schedule": (StaleOrder, PreemptForgetsTheLast),
    "tree commit": (PathAsPrefix, LastChild),
    "stop": (IgnoresTheCut, CutsBeforeTheRoot),
}


def adapter() -> Adapter:
    """A decoding for each fault, and a correct one."""
    every: list[type[Right]] = [Right, *(fault for faults in CLASSES.values() for fault in faults)]
    made = [Decoding(fault.__name__, fault, FLOAT64, trees=True) for fault in every]
    return Adapter("faulty sequences", "1", decodings=tuple(made))
