"""Servers whose forks and saved prefixes share memory with what runs on, or whose blocks begin at the wrong token."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.layers import mixer
from ssmspec_ref.layers.mixer import MixerInputs, MixerState
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

from ...adapters.reference_parts.states import States
from ..fault import planted
from ..rollback.lives import Remembers, Written


class ForkSharesTheWindow(Written):
    """A fork copies the state and shares the window of the convolution: what one decodes changes the other."""

    def fork(self, slot: int, to: int) -> None:
        seen, state = self.running[slot]
        self.running[to] = seen, MixerState(state.M, state.S.copy())


class ForkSharesTheState(Written):
    """A fork copies the window of the convolution and shares the state: what one decodes changes the other."""

    def fork(self, slot: int, to: int) -> None:
        seen, state = self.running[slot]
        self.running[to] = seen, MixerState(state.M.copy(), state.S)


class SavedIsTheRunning(Written):
    """What is saved under a prefix is the memory of the sequence that runs on, not a copy."""

    def feed(self, slot: int, tokens: Array, inputs: MixerInputs) -> Array:
        before = set(self.saved)
        y = super().feed(slot, tokens, inputs)
        for key in set(self.saved) - before:
            self.saved[key] = self.running[slot][1]
        return y


class BlocksOfACall(States):
    """Blocks are counted from the first token of a call, not of the sequence, and saved under the tokens seen by then."""

    def feed(self, slot: int, tokens: Array, inputs: MixerInputs) -> Array:
        seen, state = self.running[slot]
        outputs = []
        for at, token in enumerate(map(int, tokens)):
            y, state = mixer.scan(state, each(lambda a, at=at: a[:, at : at + 1], inputs), self.layer)
            seen = (*seen, token)
            outputs.append(y)
            if self.block and (at + 1) % self.block == 0:
                self.save(seen, state)
        self.running[slot] = seen, state
        return np.concatenate(outputs, axis=1)


class Listed(States):
    """A server that keeps the tokens of every sequence in a list: correct, since no two sequences have the same list."""

    def __init__(self, layer: mixer.Mixer, slots: int, block: int) -> None:
        super().__init__(layer, slots, block)
        self.lists: dict[int, list[int]] = {}
        self.copies: set[int] = set()

    def begin(self, slot: int, tokens: Array) -> int:
        found = super().begin(slot, tokens)
        self.lists[slot] = list(self.running[slot][0])
        self.copies.discard(slot)
        return found

    def feed(self, slot: int, tokens: Array, inputs: MixerInputs) -> Array:
        if slot in self.copies:
            self.lists[slot] = [*self.lists[slot]]
            self.copies.discard(slot)
        self.running[slot] = tuple(self.lists[slot]), self.running[slot][1]
        self.lists[slot] += map(int, tokens)
        return super().feed(slot, tokens, inputs)

    def fork(self, slot: int, to: int) -> None:
        super().fork(slot, to)
        self.lists[to] = [*self.lists[slot]]
        self.copies.discard(to)

    def take(self, slot: int, held: Any) -> None:
        super().take(slot, held)
        self.lists[slot] = list(held[0])
        self.copies.discard(slot)

    def export(self, slot: int) -> Any:
        return tuple(self.lists[slot]), self.running[slot][1]


class ForkSharesTokens(Listed):
    """A fork shares the list of tokens with its origin: once both are fed, what they save later has wrong keys."""

    def fork(self, slot: int, to: int) -> None:
        super().fork(slot, to)
        self.lists[to] = self.lists[slot]


class ForkKeepsTheList(ForkSharesTokens):
    """A fork writes on in its origin's list of tokens, which the origin copies only when it is fed next."""

    def fork(self, slot: int, to: int) -> None:
        super().fork(slot, to)
        self.copies.add(slot)


class OriginKeepsTheList(ForkSharesTokens):
    """An origin writes on in the list of tokens that its fork reads, which the fork copies only when it is fed next."""

    def fork(self, slot: int, to: int) -> None:
        super().fork(slot, to)
        self.copies.add(to)


class HitKeepsTheWindowOfTheSlot(Remembers):
    """A prefix hit restores the state; the window of the convolution stays what the slot held before."""

    def begin(self, slot: int, tokens: Array) -> int:
        found = super().begin(slot, tokens)
        seen, state = self.running[slot]
        if found and slot in self.old:
            self.running[slot] = seen, replace(state, M=self.old[slot].M)
        return found


FAULTS = planted(
    *(
        (build, "life.states", bug_class)
        for build, bug_class in (
            (ForkSharesTheWindow, "SLOT-SCOPE"),
            (ForkSharesTheState, "SLOT-SCOPE"),
            (SavedIsTheRunning, "PREFIX-CKPT"),
            (BlocksOfACall, "PREFIX-CKPT"),
            (HitKeepsTheWindowOfTheSlot, "CONV"),
            (ForkSharesTokens, "PREFIX-CKPT"),
            (ForkKeepsTheList, "PREFIX-CKPT"),
            (OriginKeepsTheList, "PREFIX-CKPT"),
        )
    )
)
