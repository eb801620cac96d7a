"""Servers that save, find, fork or move a state wrongly, over the reference's; each is right for a sequence that is alone."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.layers import mixer
from ssmspec_ref.layers.mixer import MixerInputs, MixerState
from ssmspec_ref.shapes import Array

from ...adapters.reference_parts.states import States, Tokens
from ...judge.draw import stored
from ..fault import planted


class SavesAtTheEndOfACall(States):
    """The state at the end of a call is saved under the last boundary before it. Bug class PREFIX-CKPT."""

    def feed(self, slot: int, tokens: Array, inputs: MixerInputs) -> Array:
        kept = dict(self.saved)
        y = super().feed(slot, tokens, inputs)
        new = [key for key in self.saved if key not in kept]
        if new:
            self.saved[max(new, key=len)] = self.running[slot][1]
        return y


class KeyOfTheLastBlock(States):
    """A saved state is found by its length and the tokens of its last block only. Bug class PREFIX-CKPT."""

    def begin(self, slot: int, tokens: Array) -> int:
        found = super().begin(slot, tokens)
        prompt, block = tuple(map(int, tokens)), self.block
        for key, state in self.saved.items():
            n = len(key)
            if len(prompt) > n >= found and prompt[n - block : n] == key[-block:]:
                found, self.running[slot] = n, (prompt[:n], state)
        return found


class KeyOfTheLength(States):
    """A checkpoint of the right length is taken, of whichever prompt. Bug class PREFIX-CKPT."""

    def save(self, seen: Tokens, state: MixerState) -> None:
        for key in [key for key in self.saved if len(key) == len(seen)]:
            self.saved[key] = state
        super().save(seen, state)


class FindsTheWholePrompt(States):
    """A prefix that covers the whole prompt is found, so that the last token is fed to a state that has seen it."""

    def begin(self, slot: int, tokens: Array) -> int:
        found, prompt = super().begin(slot, tokens), tuple(map(int, tokens))
        if prompt in self.saved:
            self.running[slot] = prompt[:found], self.saved[prompt]
        return found


class LosesTheWindowOfAPrefix(States):
    """A saved prefix has the recurrent state; the window of the convolution starts from zero. Bug class CONV."""

    def save(self, seen: Tokens, state: MixerState) -> None:
        super().save(seen, replace(state, M=np.zeros_like(state.M)))


class SavesInBf16(States):
    """Saved states are rounded to bf16. Bug class NUMERIC."""

    def save(self, seen: Tokens, state: MixerState) -> None:
        super().save(seen, replace(state, S=stored(state.S, "bf16")))


class Remembers(States):
    """A right server that remembers what a slot held at the end of a sequence."""

    def __init__(self, layer: Any, slots: int, block: int) -> None:
        super().__init__(layer, slots, block)
        self.old: dict[int, MixerState] = {}

    def end(self, slot: int) -> None:
        self.old[slot] = self.running[slot][1]
        super().end(slot)


class MissesKeepTheSlot(Remembers):
    """A prompt without a saved prefix starts from what the slot held before. Bug class SLOT-REUSE."""

    def begin(self, slot: int, tokens: Array) -> int:
        found = super().begin(slot, tokens)
        if not found and slot in self.old:
            self.running[slot] = (), self.old[slot]
        return found


class ForgetsToEvict(States):
    """Evicted prefixes are found again, although their memory may hold something else. Bug class PREFIX-CKPT."""

    def evict(self) -> None:
        self.saved = {key: mixer.new_state(self.layer, 1) for key in self.saved}


class Written(States):
    """A server whose states are written in place: correct, since it copies what is saved, forked and exported."""

    def feed(self, slot: int, tokens: Array, inputs: MixerInputs) -> Array:
        _, state = self.running[slot]
        y = super().feed(slot, tokens, inputs)
        seen, after = self.running[slot]
        state.M[:], state.S[:] = after.M, after.S
        self.running[slot] = seen, state
        return y

    def save(self, seen: Tokens, state: MixerState) -> None:
        super().save(seen, copied(state))

    def begin(self, slot: int, tokens: Array) -> int:
        found = super().begin(slot, tokens)
        self.running[slot] = self.running[slot][0], copied(self.running[slot][1])
        return found

    def fork(self, slot: int, to: int) -> None:
        self.running[to] = self.running[slot][0], copied(self.running[slot][1])

    def export(self, slot: int) -> Any:
        seen, state = self.running[slot]
        return seen, copied(state)

    def take(self, slot: int, held: Any) -> None:
        self.running[slot] = held[0], copied(held[1])


class ForkShares(Written):
    """A fork has its own tokens and the memory of its origin, where both are written. Bug class SLOT-SCOPE."""

    def fork(self, slot: int, to: int) -> None:
        self.running[to] = self.running[slot]


class HitShares(Written):
    """A sequence continues in the memory of the saved prefix that it began from. Bug class PREFIX-CKPT."""

    def begin(self, slot: int, tokens: Array) -> int:
        return States.begin(self, slot, tokens)


class ExportIsAView(Written):
    """An exported state follows the sequence that it was exported from. Bug class SCHED."""

    def export(self, slot: int) -> Any:
        return self.running[slot]


class TakesTheStateOnly(States):
    """The window of the convolution is not transferred with the state. Bug class CONV."""

    def take(self, slot: int, held: Any) -> None:
        seen, state = held
        self.running[slot] = seen, replace(state, M=np.zeros_like(state.M))


class TakeLosesTheTokens(States):
    """A state that was taken starts an empty list of tokens, so what it saves later has wrong keys. Bug class PREFIX-CKPT."""

    def take(self, slot: int, held: Any) -> None:
        self.running[slot] = (), held[1]


class ForkLosesTheTokens(States):
    """A fork starts an empty list of tokens, so what it saves later has wrong keys. Bug class PREFIX-CKPT."""

    def fork(self, slot: int, to: int) -> None:
        self.running[to] = (), self.running[slot][1]


class ForksToTheNext(States):
    """A fork is written to the slot after its origin, wherever it was to go. Bug class SLOT-SCOPE."""

    def __init__(self, layer: Any, slots: int, block: int) -> None:
        super().__init__(layer, slots, block)
        self.slots = slots

    def fork(self, slot: int, to: int) -> None:
        super().fork(slot, (slot + 1) % self.slots)
        self.running.setdefault(to, ((), mixer.new_state(self.layer, 1)))


def copied(state: MixerState) -> MixerState:
    return MixerState(state.M.copy(), state.S.copy())


FAULTS = planted(
    *(
        (build, "life.states", bug_class)
        for build, bug_class in (
            (SavesAtTheEndOfACall, "PREFIX-CKPT"),
            (KeyOfTheLastBlock, "PREFIX-CKPT"),
            (KeyOfTheLength, "PREFIX-CKPT"),
            (FindsTheWholePrompt, "PREFIX-CKPT"),
            (LosesTheWindowOfAPrefix, "CONV"),
            (SavesInBf16, "NUMERIC"),
            (MissesKeepTheSlot, "SLOT-REUSE"),
            (ForgetsToEvict, "PREFIX-CKPT"),
            (ForkShares, "SLOT-SCOPE"),
            (HitShares, "PREFIX-CKPT"),
            (ExportIsAView, "SCHED"),
            (TakesTheStateOnly, "CONV"),
            (TakeLosesTheTokens, "PREFIX-CKPT"),
            (ForkLosesTheTokens, "PREFIX-CKPT"),
            (ForksToTheNext, "SLOT-SCOPE"),
        )
    )
)
