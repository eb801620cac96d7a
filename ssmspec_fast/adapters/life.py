"""The engine as a server of states, for the suite: sequences in its slots, forked, exported and taken; no prefix cache.

Each call feeds one sequence, token by token, beside a row of padding, while the others stay in their slots.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ssmspec_ref.contract import Capability, Limits, NumericContract, Subject
from ssmspec_ref.shapes import Array

from ..engine.state import SequenceState
from ..operations import Operations
from . import methods
from .decoder import NOT_THERE, Decoding
from .given import GIVEN
from .given.layer import LONGEST
from .methods import Make
from .poison import poison

ONE, ROOT = np.ones(1, dtype=np.int64), np.zeros((1, 1), dtype=np.int64)
"""One token is accepted: the root."""


class Server(Decoding):
    """`ssmspec_ref.contract.States` over a decoder, which is built when the first token gives its sizes."""

    def __init__(self, make: Make, operations: Operations, device: str, mixer: Any, slots: int, block: int) -> None:
        zero = SimpleNamespace(M=np.zeros((1, *mixer.conv.weight.shape)), S=np.zeros((1, *mixer.state_shape)))
        super().__init__(make, operations, device, 1, mixer, zero)
        self.capacity, self.running = slots + 1, set[int]()
        self.waiting: dict[int, SequenceState] = {}

    def begin(self, slot: int, tokens: Array) -> int:
        """A fresh sequence: its state is zero when its first token comes, whatever the slot holds."""
        M, S = (torch.tensor(x[0], device=self.device).float() for x in (self.initial.M, self.initial.S))
        self.take(slot, SequenceState(((M, S),), 0))
        return 0

    def feed(self, slot: int, tokens: Array, inputs: Any) -> Array:
        return np.concatenate([self.token(slot, inputs, at) for at in range(len(tokens))], axis=1)

    def token(self, slot: int, inputs: Any, at: int) -> Array:
        self.slots = torch.tensor([slot], device=self.device)
        gates = {name: None if a is None else a[:, at : at + 1] for name, a in vars(inputs.gates).items()}
        one = SimpleNamespace(pre=inputs.pre[:, at : at + 1], gates=SimpleNamespace(**gates))
        if self.decoder is None:
            self.decoder = self.start(one, trees=False)
            for waits, held in self.waiting.items():
                self.write(waits, held)
        y = self.verify(one)
        self.commit(ONE, ROOT)
        return y

    def fork(self, slot: int, to: int) -> None:
        self.take(to, self.export(slot))

    def end(self, slot: int) -> None:
        self.running.remove(slot)
        if self.decoder is not None:
            self.decoder.release(slot)

    def evict(self) -> None:
        """There is no cache."""

    def export(self, slot: int) -> SequenceState:
        return self.waiting[slot] if self.decoder is None else self.decoder.snapshot(slot, self.sequences)

    def take(self, slot: int, held: SequenceState) -> None:
        self.running.add(slot)
        if self.decoder is None:
            self.waiting[slot] = held
        else:
            self.write(slot, held)

    def write(self, slot: int, held: SequenceState) -> None:
        """A state, and a root that follows it."""
        assert self.decoder is not None
        self.decoder.restore(slot, held)
        self.sequences.add(slot, [0], LONGEST, slot)

    def poison(self) -> None:
        if self.decoder is not None:
            live = sorted(self.running)
            poison(self.decoder, set(range(self.decoder.slots)) - set(live), live)

    def state(self, slot: int) -> tuple[Array, Array]:  # type: ignore[override]
        M, S = (x[None].double().cpu().numpy() for x in self.export(slot).layers[0])
        return M, S


METHODS = {"plain": methods.plain, "replay buffer": methods.CHAINS["replay buffer"][0]}
"""States as they are, and with a ring whose tokens a copy must include."""


def subjects(device: str, operations: Operations, contract: NumericContract, name: str = "life") -> list[Subject]:
    """The life of a state under two methods."""
    kinds = tuple(model for kind in GIVEN.values() for model in kind.models)
    limits = Limits({"kind": kinds, "inner_norm": ("off",), "block": ("none",)}, reason=f"no prefix cache; {NOT_THERE}")
    return [
        Subject(
            f"{name}, {method}",
            {"life.states": Capability(partial(Server, make, operations, device), contract, limits)},
            absent={"": "another part of the engine"},
        )
        for method, make in METHODS.items()
    ]
