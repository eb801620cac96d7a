"""Plain decoding seen token by token, drafters of every skill, and the comparison of states, for the tests of speculation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ssmspec_ref import decode, speculate
from ssmspec_ref.accept import Stop
from ssmspec_ref.attention import KVState
from ssmspec_ref.backtrack import activation_replay, joint, snapshots, tree
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from ssmspec_ref.decode import Choose, Row, Sequences, Settings, most_likely
from ssmspec_ref.model import Model, ModelState, tiny
from ssmspec_ref.records import rows
from ssmspec_ref.shapes import Array
from ssmspec_ref.speculate import Drafter, Judge, Kept, Window
from ssmspec_ref.tree import PADDING

from .families import TOLERANCE

WINDOW = 6  # the longest window of these tests
PATHS: dict[str, Any] = {
    "snapshots": snapshots,
    "joint": joint,
    "activation_replay": activation_replay,
    "replay_buffer": ReplayBuffer(capacity=2 * WINDOW + 1, window=WINDOW),
    "tree": tree,
}
TREES = ("snapshots", "activation_replay", "tree")  # the paths that verify trees
each_path = pytest.mark.parametrize("path", PATHS)
VOCABULARY = 5


@dataclass(frozen=True)
class Plain:
    """Plain decoding of a batch: what it emits, and the state after each number of emitted tokens."""

    sequences: Sequences
    states: tuple[ModelState, ...]

    def state(self, b: int, emitted: int) -> ModelState:
        """The state of row b when it had emitted so many tokens."""
        return one_row(self.states[emitted], b)


def one_row(state: ModelState, b: int) -> ModelState:
    return tuple(rows(layer, np.array([b])) for layer in state)


def plain(prompts: tuple[Row, ...], model: Model, settings: Settings, choose: Choose = most_likely) -> Plain:
    sequences, state = decode.prefill(prompts, model)
    states = [state]
    while sequences.active(settings).any():
        sequences, state = decode.step(sequences, state, model, settings, choose)
        states.append(state)
    return Plain(sequences, tuple(states))


def deviation(state: ModelState, plain: ModelState) -> float:
    """The largest deviation of a state of one row, of the largest entry of each array; inf for another length of a cache."""
    worst = 0.0
    for got, want in zip(state, plain, strict=True):
        if isinstance(want, KVState):
            if not np.array_equal(got.length, want.length):
                return float("inf")
            held = int(want.length[0])
            pairs = [(got.K[:, :held], want.K[:, :held]), (got.V[:, :held], want.V[:, :held])]
        else:
            pairs = [(got.M, want.M), (got.S, want.S)]
        for a, b in pairs:
            worst = np.maximum(worst, np.max(np.abs(a - b), initial=0.0) / max(np.max(np.abs(b), initial=0.0), 1e-300))
    return float(worst)


def check_against(plain: Plain, sequences: Sequences, state: ModelState) -> None:
    """Assert that what was decoded, and every piece of state, is what plain decoding had."""
    for b, emitted in enumerate(sequences.emitted):
        assert emitted == plain.sequences.emitted[b][: len(emitted)]
        assert deviation(one_row(state, b), plain.state(b, len(emitted))) <= TOLERANCE


def drawn_prompts(rng: np.random.Generator, count: int) -> tuple[Row, ...]:
    """Prompts of unequal length, some of one token, which is a root and nothing else."""
    return tuple(tuple(rng.integers(0, VOCABULARY, length).tolist()) for length in rng.integers(1, 6, count))


def drawn_tree(rng: np.random.Generator, nodes: int) -> Array:
    """Random parents; some padding behind."""
    real = int(rng.integers(1, nodes + 1))
    parents = [-1, *(int(rng.integers(0, i)) for i in range(1, real))]
    return np.array(parents + [PADDING] * (nodes - real))


@dataclass(frozen=True)
class Oracle:
    """A drafter that says what plain decoding will say with probability `skill`, and anything else otherwise."""

    plain: Plain
    skill: float
    rng: np.random.Generator

    def token(self, b: int, position: int) -> int:
        future = self.plain.sequences.emitted[b]
        if position < len(future) and self.rng.random() < self.skill:
            return future[position]
        return int(self.rng.integers(0, VOCABULARY))

    def chains(self, drafts: int, each: int) -> Drafter:
        """`each` rows for a sequence, of up to `drafts` tokens behind the root; an ended sequence may have no live row."""

        def window(sequences: Sequences) -> Window:
            owner = np.repeat(np.arange(len(sequences)), each)
            tokens = np.array(
                [
                    [root, *(self.token(b, len(sequences.emitted[b]) + t) for t in range(drafts))]
                    for b, root in zip(owner, sequences.roots()[owner], strict=True)
                ]
            )
            ended = np.array([len(e) >= len(p) for e, p in zip(sequences.emitted, self.plain.sequences.emitted, strict=True)])
            lengths = self.rng.integers(1, drafts + 2, len(owner))
            lengths[ended[owner]] = self.rng.integers(0, 2, int(ended[owner].sum()))
            lengths[::each] = np.where(ended, 0, drafts + 1)
            order = self.rng.permutation(len(owner)) if each > 1 else np.arange(len(owner))
            return Window(tokens[order], lengths[order], None if each == 1 else owner[order])

        return window

    def trees(self, nodes: int) -> Drafter:
        """One random tree for each sequence, duplicate siblings and padding among them."""

        def window(sequences: Sequences) -> Window:
            parents = np.array([drawn_tree(self.rng, nodes) for _ in range(len(sequences))])
            tokens = np.zeros(parents.shape, dtype=np.int64)
            for b, root in enumerate(sequences.roots()):
                depth = np.zeros(nodes, dtype=np.int64)
                tokens[b, 0] = root
                for i in range(1, int((parents[b] != PADDING).sum())):
                    depth[i] = depth[parents[b, i]] + 1
                    tokens[b, i] = self.token(b, len(sequences.emitted[b]) + depth[i] - 1)
            return Window(tokens, parents=parents)

        return window


def check_windows(
    plain: Plain,
    model: Model,
    path: Any,
    drafter: Drafter,
    settings: Settings,
    judge: Judge | None = None,
    windows: int = 12,
    each: Callable[[Kept], Kept] = lambda kept: kept,
) -> None:
    """Decode window by window, and compare tokens and state with plain decoding after every one."""
    sequences, state = decode.prefill(plain.sequences.prompts, model)
    kept = speculate.start(state, model, path)
    check_against(plain, sequences, speculate.restore(kept, sequences, model, path))
    for _ in range(windows):
        window = drafter(sequences)
        sequences, kept = speculate.step(kept, sequences, window, model, path, settings, judge or speculate.follow())
        kept = each(kept)
        check_against(plain, sequences, speculate.restore(kept, sequences, model, path))


def tiny_model(kind: str, seed: int) -> Model:
    return tiny.model(kind, seed, VOCABULARY)


def stopping(eos: int) -> Stop:
    return Stop(frozenset({eos}))


def late(emitted: Row) -> int:
    """The token that comes last for the first time: an end of sequence that leaves something to decode before it."""
    return max(emitted, key=emitted.index)
