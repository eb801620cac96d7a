"""Twelve windows in a row through a backtracking path, beside plain decoding of what was accepted.

The sequences live in the slots of a pool; each window takes some of them, in any order, with one to three drafts each, of
unequal lengths, and accepts nothing (the sequence takes no part), the root alone, a part or all of one draft. Outputs, and
every piece of the state that the path restores, are compared with `mixer.scan` token by token.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ssmspec_ref import slots
from ssmspec_ref.backtrack import Accepted, Draft, activation_replay, joint, snapshots, tree
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from ssmspec_ref.layers.mixer import MixerInputs, MixerState, scan
from ssmspec_ref.records import arrays, each, rows
from ssmspec_ref.shapes import Array
from tests.families import TOLERANCE, Family, Kind, Sizes, layer, same_bits, tokens

PATHS: dict[str, Any] = {
    "snapshots": snapshots,
    "joint": joint,
    "activation_replay": activation_replay,
    "replay_buffer": ReplayBuffer(capacity=9, window=4),
    "tree": tree,
}
TREES = ("snapshots", "activation_replay", "tree")
"""The paths that verify trees."""
each_path = pytest.mark.parametrize("path", PATHS)
each_tree_path = pytest.mark.parametrize("path", TREES)


def wrong(path: Any, **verbs: Any) -> Any:
    """A path with some verbs replaced."""
    return SimpleNamespace(
        **({name: getattr(path, name) for name in ("start", "verify", "commit", "restore", "refeed")} | verbs)
    )


@dataclass
class Case:
    """One run; `tokens` is T, the root included."""

    kind: Kind
    seed: int
    sizes: Sizes = field(default_factory=Sizes)
    family: Family = "gentle"
    windows: int = 12
    tokens: int = 4
    drafts: int = 3


@dataclass
class Trail:
    """What plain decoding holds of one sequence: its accepted tokens, and the state after each of them."""

    states: list[MixerState]
    tokens: list[MixerInputs] = field(default_factory=list)


@dataclass
class Excess:
    """How far results are from plain decoding, as a multiple of what is allowed; NaN is beyond any multiple."""

    worst: float = 0.0
    lengths: set[int] = field(default_factory=set)  # tokens of a call, what was brought again included
    accepted: set[str] = field(default_factory=set)  # "nothing", "root", "part", "all"
    unchanged: bool = True  # these rows, and the sequences outside the batch, bit for bit

    def compare(self, got: Array, ref: Array) -> None:
        """max|got - ref| / allowed, TOLERANCE of max|ref|; the bounds of float64 are in `tests/ref/test_backtrack_bounds`."""
        assert got.shape == ref.shape
        with np.errstate(invalid="ignore"):
            error = float(np.max(np.abs(got - ref), initial=0.0))
        allowed = TOLERANCE * float(np.max(np.abs(ref), initial=0.0))
        excess = error / allowed if allowed > 0 else (0.0 if error == 0 else np.inf)
        self.worst = float(np.maximum(self.worst, excess))  # keeps NaN

    def holds(self) -> bool:
        return self.unchanged and self.worst <= 1


def tokens_of(window: Any, r: int, begin: int, end: int) -> Any:
    return each(lambda a: a[r : r + 1, begin:end], window)


def plainly(mixer: Any, state: MixerState, window: MixerInputs, r: int, begin: int, end: int) -> tuple[Array, Trail]:
    """Plain decoding of tokens begin .. end of row r: their outputs, and the trail behind `state`."""
    trail, outputs = Trail([state]), []
    for t in range(begin, end):
        token = tokens_of(window, r, t, t + 1)
        y, state = scan(state, token, mixer)
        outputs.append(y)
        trail.tokens.append(token)
        trail.states.append(state)
    return np.concatenate(outputs, axis=1), trail


def speculate(path: Any, case: Case) -> Excess:
    """Run the windows of a case through a path."""
    rng, excess = np.random.default_rng([case.seed, 9]), Excess()
    mixer, state, _ = layer(case.kind, case.seed, case.sizes, case.family)
    count = state.M.shape[0]
    trails = [Trail([rows(state, np.array([b]))]) for b in range(count)]
    pool = path.start(state)
    for w in range(case.windows):
        order = rng.permutation(count)[: count if w == 0 else rng.integers(1, count + 1)]
        kept = rows(pool, order) if w == 0 else slots.take(pool, order)
        draft, roots = _draft(rng, case, mixer, [trails[b] for b in order], path.refeed(kept))
        for array in [*arrays(kept), *arrays(draft)]:
            array.setflags(write=False)
        y, pending = path.verify(kept, draft, mixer)
        excess.lengths.add(draft.tokens)
        accepted, plain = _accept(rng, mixer, draft, roots, [trails[b] for b in order], y, excess)
        after = path.commit(pending, accepted, mixer)
        before = path.restore(kept, mixer)
        for i, b in enumerate(order):
            advanced = accepted.advanced[i]
            trails[b].tokens += plain[i].tokens[:advanced]
            trails[b].states += plain[i].states[1 : advanced + 1]
        _compare_states(path, mixer, after, before, accepted.advanced == 0, [trails[b] for b in order], excess)
        others = np.setdiff1d(np.arange(count), order)
        grown = rows(after, np.argsort(order)) if w == 0 else slots.put(pool, order, after)
        excess.unchanged &= same_bits(rows(grown, others), rows(pool, others)) if len(others) else True
        pool = grown
    return excess


def _draft(rng: np.random.Generator, case: Case, mixer: Any, trails: list[Trail], lag: Array) -> tuple[Draft, Array]:
    """A window: for each row, the tokens to be brought again, the root that all rows of a sequence share, and drafts."""
    sequence = np.repeat(np.arange(len(trails)), rng.integers(1, case.drafts + 1, len(trails)))
    sequence = rng.permutation(sequence)
    real = np.where(rng.uniform(size=len(sequence)) < 0.5, case.tokens, rng.integers(1, case.tokens + 1, len(sequence)))
    resting = rng.uniform(size=len(trails)) < 0.1
    lengths = np.where(resting[sequence], 0, real + lag[sequence])
    width = max(int(lengths.max()), case.tokens)
    window = tokens(case.kind, mixer, int(rng.integers(2**31)), len(sequence), width, case.family)
    for r, b in enumerate(sequence):
        first = int(np.flatnonzero(sequence == b)[0])
        root = tokens_of(window, first, int(lag[b]), int(lag[b]) + 1)
        head = trails[b].tokens[len(trails[b].tokens) - int(lag[b]) :]
        for t, token in enumerate([*head, root]):
            window = each(lambda a, new, r=r, t=t: _placed(a, r, t, new), window, token)
    return Draft(window, lengths, sequence), lag


def _placed(array: Array, r: int, t: int, token: Array) -> Array:
    changed = array.copy()
    changed[r, t] = token[0, 0]
    return changed


def _accept(
    rng: np.random.Generator, mixer: Any, draft: Draft, lag: Array, trails: list[Trail], y: Array, excess: Excess
) -> tuple[Accepted, list[Trail]]:
    """Compare the outputs of every row, then draw what is accepted; the trails are those of the accepted rows."""
    assert draft.lengths is not None
    assert draft.sequence is not None
    plain: dict[int, Trail] = {}
    for r, (b, length) in enumerate(zip(draft.sequence, draft.lengths, strict=True)):
        if length:
            y_plain, plain[r] = plainly(mixer, trails[b].states[-1], draft.inputs, r, lag[b], length)
            excess.compare(y[r : r + 1, lag[b] : length], y_plain)
    row, advanced = np.zeros(len(trails), dtype=np.int64), np.zeros(len(trails), dtype=np.int64)
    for b in range(len(trails)):
        row[b] = rng.choice(np.flatnonzero(draft.sequence == b))
        held = max(0, draft.lengths[row[b]] - lag[b])
        advanced[b] = rng.choice([0, min(1, held), held, rng.integers(0, held + 1)], p=[0.1, 0.25, 0.3, 0.35])
        names = {0: "nothing", 1: "root", held: "all"}
        excess.accepted.add(names.get(int(advanced[b]), "part"))
    return Accepted(advanced, row), [plain.get(int(r), Trail([])) for r in row]


def _compare_states(
    path: Any, mixer: Any, kept: Any, before: MixerState, rested: Array, trails: list[Trail], excess: Excess
) -> None:
    """What the path restores beside plain decoding `refeed` tokens ago; rows that rested keep their bits."""
    restored, lag = path.restore(kept, mixer), path.refeed(kept)
    for b, trail in enumerate(trails):
        ref = trail.states[len(trail.states) - 1 - int(lag[b])]
        got = rows(restored, np.array([b]))
        excess.compare(got.M, ref.M)
        excess.compare(got.S, ref.S)
        if rested[b]:
            excess.unchanged &= same_bits(got, rows(before, np.array([b])))
