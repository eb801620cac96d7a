"""Parts of faulty decoders: a correct one, one that commits other tokens, one that remembers earlier states."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ssmspec_ref import model as lm
from ssmspec_ref.backtrack import snapshots
from ssmspec_ref.contract import TokenWindow
from ssmspec_ref.model import Model, ModelState
from ssmspec_ref.shapes import Array

from ...adapters.sequences import PathDecoder


class Right(PathDecoder):
    """Correct."""

    def __init__(self, model: Model, slots: int, cache: int, window: int) -> None:
        super().__init__(snapshots, model, slots, cache, window)
        self.slots = slots
        self.start()

    def start(self) -> None:
        """What a fault keeps beside."""

    def after(self, slot: int, tokens: Sequence[int]) -> ModelState:
        """The state of a slot, advanced by tokens."""
        state = self.snapshot(slot)[0]
        return lm.scan(state, np.array([tokens]), self.model)[1] if len(tokens) else state


class OtherTokens(Right):
    """The state advances by other nodes of the window than the path's; the reported tokens are the path's."""

    def taken(self, slot: int, window: TokenWindow, row: int, path: Array) -> Array:
        """The nodes (m) that enter the state."""
        raise NotImplementedError

    def keep(self, slot: int, window: TokenWindow, pending: Any, row: int, path: Array, root: int) -> None:
        taken = self.taken(slot, window, row, path)
        state = None if np.array_equal(taken, path) else self.after(slot, window.tokens[row, taken].tolist())
        super().keep(slot, window, pending, row, path, root)
        if state is not None:
            self.begin(slot, state, self.tokens[slot])


class Remembers(Right):
    """The state of a slot before its last window is kept in `before`."""

    def start(self) -> None:
        self.before: dict[int, Any] = {}

    def keep(self, slot: int, *rest: Any) -> None:
        self.before[slot] = self.kept[slot]
        super().keep(slot, *rest)

    def begin(self, slot: int, state: ModelState, tokens: tuple[int, ...]) -> None:
        self.before.pop(slot, None)
        super().begin(slot, state, tokens)
