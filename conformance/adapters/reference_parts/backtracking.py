"""The backtracking paths of the reference as implementations of speculation."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref.backtrack import Accepted, Draft, activation_replay, joint, snapshots, tree
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from ssmspec_ref.contract import FLOAT64, Capability, Limits, NumericContract, Subject
from ssmspec_ref.layers.mixer import Mixer, MixerInputs, MixerState, scan
from ssmspec_ref.records import along, concat
from ssmspec_ref.shapes import Array, Lengths, Parents, Path


class Backtracking:
    """A path, and the accepted tokens: those that the path lags by are repeated in the next window."""

    def __init__(self, path: Any, mixer: Mixer, state: MixerState) -> None:
        self.path, self.mixer, self.kept = path, mixer, path.start(state)
        self.tokens: MixerInputs | None = None
        self.accepted: list[list[int]] = [[] for _ in range(state.M.shape[0])]

    def verify(self, inputs: MixerInputs, parents: Parents | None = None) -> Array:
        self.begin = 0 if self.tokens is None else self.tokens.pre.shape[1]
        self.tokens = inputs if self.tokens is None else concat(self.tokens, inputs)
        lag, count = self.path.refeed(self.kept), inputs.pre.shape[1]
        window, lengths = self._gather([[*self._last(b, lag[b]), *self._new(count)] for b in range(len(lag))])
        y, self.pending = self.path.verify(self.kept, Draft(window, lengths, parents=parents), self.mixer)
        at = lag[:, None] + np.arange(count)
        return np.take_along_axis(y, at.reshape(at.shape + (1,) * (y.ndim - 2)), axis=1)

    def commit(self, advanced: Lengths, path: Path) -> None:
        lag = self.path.refeed(self.kept)
        chain = lag.any() or self.pending.draft.parents is None
        self.kept = self.path.commit(self.pending, Accepted(advanced, path=None if chain else path), self.mixer)
        for b, count in enumerate(advanced):
            self.accepted[b] += [self.begin + int(node) for node in path[b, :count]]

    def state(self) -> tuple[Array, Array]:
        held, lag = self.path.restore(self.kept, self.mixer), self.path.refeed(self.kept)
        if lag.any():
            window, lengths = self._gather([list(self._last(b, count)) for b, count in enumerate(lag)])
            _, held = scan(held, window, self.mixer, np.arange(window.pre.shape[1]) < lengths[:, None])
        return held.M, held.S

    def _last(self, b: int, count: int) -> Sequence[int]:
        return self.accepted[b][len(self.accepted[b]) - int(count) :]

    def _new(self, count: int) -> Sequence[int]:
        return range(self.begin, self.begin + count)

    def _gather(self, index: list[list[int]]) -> tuple[MixerInputs, Lengths]:
        """Tokens by index, row by row, padded at the end."""
        lengths = np.array([len(row) for row in index])
        padded = np.full((len(index), int(lengths.max())), -1)
        for b, row in enumerate(index):
            padded[b, : len(row)] = row
        assert self.tokens is not None
        return along(self.tokens, padded), lengths


SEQUENTIAL, AT_ONCE = FLOAT64, replace(FLOAT64, order="output_only")
BUFFER = ReplayBuffer(capacity=15, window=7)
AGAIN = {"verify": ("once", "twice")}
LIMITS = {"replay buffer": Limits(AGAIN, {"t": (1, BUFFER.window)}, reason="its rings are made for windows of 7 tokens")}
PATHS: dict[str, tuple[Any, NumericContract, bool]] = {
    "snapshots": (snapshots, SEQUENTIAL, True),
    "joint attainment": (joint, SEQUENTIAL, False),
    "activation replay": (activation_replay, AT_ONCE, True),
    "replay buffer": (BUFFER, AT_ONCE, False),
    "tree": (tree, AT_ONCE, True),
}


def subjects() -> tuple[Subject, ...]:
    """Each path, on chains and, if supported, on trees."""
    made = []
    for name, (path, contract, trees) in PATHS.items():
        run = partial(Backtracking, path)
        capability = Capability(run, contract, LIMITS.get(name, Limits(AGAIN)))
        capabilities = {"speculate.chain": capability} | ({"speculate.tree": capability} if trees else {})
        made.append(
            Subject(name, capabilities, {"speculate": "it verifies chains only", "": "another part of the reference"})
        )
    return tuple(made)
