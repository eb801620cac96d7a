"""States in slots with a prefix cache, token by token: what is saved is the state after the tokens of its key."""

from typing import Any

import numpy as np

from ssmspec_ref.layers import mixer
from ssmspec_ref.layers.mixer import Mixer, MixerInputs, MixerState
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

Tokens = tuple[int, ...]
Sequence = tuple[Tokens, MixerState]


class States:
    """One server. Records are never written, so one that is saved or exported stays as it is."""

    def __init__(self, layer: Mixer, slots: int, block: int) -> None:
        self.layer, self.block = layer, block
        self.running: dict[int, Sequence] = {}
        self.saved: dict[Tokens, MixerState] = {}

    def begin(self, slot: int, tokens: Array) -> int:
        prompt = tuple(map(int, tokens))
        found = max((n for n in range(len(prompt)) if prompt[:n] in self.saved), default=0)
        state = self.saved[prompt[:found]] if found else mixer.new_state(self.layer, 1)
        self.running[slot] = prompt[:found], state
        return found

    def feed(self, slot: int, tokens: Array, inputs: MixerInputs) -> Array:
        seen, state = self.running[slot]
        outputs = []
        for at, token in enumerate(map(int, tokens)):
            y, state = mixer.scan(state, each(lambda a, at=at: a[:, at : at + 1], inputs), self.layer)
            seen = (*seen, token)
            outputs.append(y)
            if self.block and len(seen) % self.block == 0:
                self.save(seen, state)
        self.running[slot] = seen, state
        return np.concatenate(outputs, axis=1)

    def save(self, seen: Tokens, state: MixerState) -> None:
        self.saved[seen] = state

    def fork(self, slot: int, to: int) -> None:
        self.running[to] = self.running[slot]

    def end(self, slot: int) -> None:
        del self.running[slot]

    def evict(self) -> None:
        self.saved = {}

    def export(self, slot: int) -> Any:
        return self.running[slot]

    def take(self, slot: int, held: Any) -> None:
        self.running[slot] = held

    def state(self, slot: int) -> tuple[Array, Array]:
        _, state = self.running[slot]
        return state.M.copy(), state.S.copy()
