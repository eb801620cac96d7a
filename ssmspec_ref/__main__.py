"""Check every backtracking path against plain decoding on tiny models of every kind: `python -m ssmspec_ref`.

Each path verifies a window and accepts part of it, so that it has tokens to undo. The next window is then compared with plain
decoding from the same prompt: its logits at every token or node, and the state of every layer after it. Both sides are
computed in float64 and each may deviate by its own running error bound, so the bound on their difference is the sum of the
two. The ring of the replay buffer must hold the committed inputs exactly. The command exits with 1 if any deviation exceeds
its bound.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from . import decode, error_bounds, speculate
from . import model as lm
from .backtrack import activation_replay, joint, snapshots, tree
from .backtrack.replay_buffer import Kept as Ring
from .backtrack.replay_buffer import ReplayBuffer
from .contract import FLOAT64, NumericContract
from .decode import Row, Sequences, Settings
from .error_bounds import Comparison
from .error_bounds.model import Bounds
from .model import Model, ModelState, tiny
from .records import rows
from .shapes import Array, Mask
from .speculate import Path, Window

SEED, VOCABULARY = 2, 5
PROMPTS: tuple[Row, ...] = ((1, 2, 3), (4,), (0, 3, 3, 1))
TREE = (-1, 0, 0, 1, 1, 2)
SEQUENTIAL, OUTPUT_ONLY = FLOAT64, replace(FLOAT64, order="output_only")
Contracts = tuple[NumericContract, ...]


@dataclass(frozen=True)
class Route:
    """A path, the window that it verifies, and the orders of evaluation that its closed forms may use."""

    path: Path
    tree: bool
    contracts: Contracts


ROUTES: dict[str, Route] = {
    "snapshots": Route(snapshots, False, (SEQUENTIAL,)),
    "joint attainment": Route(joint, False, (SEQUENTIAL,)),
    "activation replay": Route(activation_replay, False, (SEQUENTIAL,)),
    "replay buffer": Route(ReplayBuffer(capacity=18, window=6), False, (OUTPUT_ONLY,)),
    "tree": Route(tree, True, (SEQUENTIAL, OUTPUT_ONLY)),
    "activation replay, tree": Route(activation_replay, True, (SEQUENTIAL, OUTPUT_ONLY)),
}
CACHE: dict[str, Route] = {"kv cache": ROUTES["snapshots"], "kv cache, tree": ROUTES["tree"]}  # where nothing recurs


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    kind: str
    path: str
    what: str
    found: Comparison

    def __str__(self) -> str:
        found = self.found
        verdict = "" if found.passed else "  ABOVE ITS BOUND"
        numbers = f"{found.error:9.1e}  {found.bound:9.1e}  {found.utilisation:11.2e}"
        return f"{self.kind:13} {self.path:24} {self.what:7} {numbers}{verdict}"


def drafted(sequences: Sequences, future: tuple[Row, ...], is_tree: bool) -> Window:
    """Correct drafts for the first row; each later row goes wrong earlier, so that rows accept unequally."""
    parents = TREE if is_tree else tuple(range(-1, 3))
    tokens = np.zeros((len(sequences), len(parents)), dtype=np.int64)
    for b, root in enumerate(sequences.roots()):
        depth = [0] * len(parents)
        tokens[b, 0] = root
        for i, parent in enumerate(parents[1:], start=1):
            depth[i] = depth[parent] + 1
            right = future[b][len(sequences.emitted[b]) + depth[i] - 1]
            first_child = i == 1 or parents[i - 1] != parent
            tokens[b, i] = right if first_child and depth[i] <= 3 - b else (right + 1) % VOCABULARY
    return Window(tokens, parents=np.array([parents] * len(sequences)) if is_tree else None)


@dataclass(frozen=True)
class Runs:
    """Token runs that plain decoding reads from the state after a row's prompt: first what was committed, then more."""

    owner: Array
    before: tuple[Row, ...]
    more: tuple[Row, ...]


def to_every_node(sequences: Sequences, window: Window) -> tuple[Runs, Array]:
    """The token runs from the prompt to each node of a window, and the nodes."""
    trees = [window.tree(b) for b in range(len(sequences))]
    nodes = [(b, i) for b, drafts in enumerate(trees) for i in range(len(drafts))]
    more = tuple(tuple(trees[b].tokens[j] for j in trees[b].path(i)) for b, i in nodes)
    owner = np.array([b for b, _ in nodes])
    return Runs(owner, tuple(since(sequences, b) for b in owner), more), np.array(nodes)


def to_the_end(earlier: Sequences, sequences: Sequences) -> Runs:
    """The runs of committed tokens, starting at the earlier commit."""
    before = tuple(since(earlier, b) for b in range(len(earlier)))
    more = tuple(since(sequences, b)[len(row) :] for b, row in enumerate(before))
    return Runs(np.arange(len(before)), before, more)


def since(sequences: Sequences, b: int) -> Row:
    """The tokens that a row has committed since its prompt, including the prompt's last token (the first root)."""
    return sequences.committed(b)[len(sequences.prompts[b]) - 1 :]


def plain(state: ModelState, runs: Runs, model: Model) -> tuple[Array, ModelState, Bounds]:
    """Decode the runs plainly. Returns the last logits, the state, and the error bound of both."""
    tokens, live = decode.padded(tuple(a + b for a, b in zip(runs.before, runs.more, strict=True)))
    began = tuple(rows(layer, runs.owner) for layer in state)
    logits, after = lm.scan(began, tokens, model, live)
    return ends(logits, live), after, error_bounds.model.scan(began, tokens, model, (SEQUENTIAL,), live)


def of_path(state: ModelState, runs: Runs, model: Model, route: Route) -> tuple[Bounds, Mask]:
    """The error bound of the path, and which tokens of its last window are real.

    The window is read from the state of the previous commit, which has an error already; the replay buffer reads both as one
    sequence.
    """
    began = tuple(rows(layer, runs.owner) for layer in state)
    if isinstance(route.path, ReplayBuffer):
        tokens, live = decode.padded(tuple(a + b for a, b in zip(runs.before, runs.more, strict=True)))
        return error_bounds.model.scan(began, tokens, model, route.contracts, live), live
    tokens, live = decode.padded(runs.before)
    first = error_bounds.model.scan(began, tokens, model, route.contracts, live)
    _, middle = lm.scan(began, tokens, model, live)
    wrong = [{name: pair.error for name, pair in layer.items()} for layer in first.layers]
    tokens, live = decode.padded(runs.more)
    return error_bounds.model.scan(middle, tokens, model, route.contracts, live, wrong), live


def ends(window: Array, live: Mask) -> Array:
    """The value at each row's last live token."""
    return window[np.arange(len(live)), live.sum(axis=1) - 1]


def step(kind: str, name: str, route: Route, model: Model) -> Iterator[Line]:
    """The lines of one path on one model."""
    settings, judge = Settings(12), speculate.follow()
    future, _ = decode.decode(PROMPTS, model, settings)
    sequences, state = decode.prefill(PROMPTS, model)
    kept = speculate.start(state, model, route.path)
    window = drafted(sequences, future.emitted, route.tree)
    earlier, kept = speculate.step(kept, sequences, window, model, route.path, settings, judge)
    window = drafted(earlier, future.emitted, route.tree)
    logits, pending = speculate.verify(kept, earlier, window, model, route.path)
    yield Line(kind, name, "logits", compared_logits(logits, earlier, window, state, model, route))
    best = speculate.runs(window, logits, earlier, settings, judge)
    kept = speculate.commit(pending, speculate.verdict(best, window), model, route.path)
    sequences = earlier.extended(tuple(run.tokens for _, run in best))
    restored = speculate.restore(kept, sequences, model, route.path)
    for what, found in compared_states(restored, to_the_end(earlier, sequences), state, model, route).items():
        yield Line(kind, name, what, max(found, key=lambda one: one.utilisation))
    if rings := [layer for layer in kept if isinstance(layer, Ring)]:
        held = np.array([[float(len(since(sequences, b))) for b in range(len(sequences))]] * len(rings))
        yield Line(kind, name, "ring", error_bounds.compare(np.array([ring.held for ring in rings]), held, 0 * held))


def compared_logits(
    logits: Array, sequences: Sequences, window: Window, state: ModelState, model: Model, route: Route
) -> Comparison:
    """Compare the logits at every node with plain decoding of everything since the prompt, up to that node."""
    runs, nodes = to_every_node(sequences, window)
    want, _, own = plain(state, runs, model)
    path, live = of_path(state, runs, model, route)
    lengths = np.array([len(a + b) for a, b in zip(runs.before, runs.more, strict=True)])
    room = own.logits.error[np.arange(len(nodes)), lengths - 1] + ends(path.logits.error, live)
    return error_bounds.compare(logits[tuple(nodes.T)], want, room)


def compared_states(
    restored: ModelState, runs: Runs, state: ModelState, model: Model, route: Route
) -> dict[str, list[Comparison]]:
    """Compare the state of every layer with plain decoding of the committed tokens."""
    _, want, own = plain(state, runs, model)
    path, _ = of_path(state, runs, model, route)
    found: dict[str, list[Comparison]] = {}
    for got, ref, mine, its in zip(restored, want, own.layers, path.layers, strict=True):
        for piece in mine:
            label = {"M": "conv", "S": "state"}.get(piece, "KV")
            room = mine[piece].error + its[piece].error
            found.setdefault(label, []).append(error_bounds.compare(getattr(got, piece), getattr(ref, piece), room))
    return found


def main() -> int:
    """Print the table; return 1 if any deviation exceeds its bound."""
    began, above, count = time.perf_counter(), 0, 0
    print(f"{'model':13} {'path':24} {'what':7} {'deviation':>9}  {'bound':>9}  {'utilisation':>11}")
    for kind in tiny.KINDS:
        model = tiny.model(kind, SEED, VOCABULARY)
        for name, route in (CACHE if kind == "attention" else ROUTES).items():
            for line in step(kind, name, route, model):
                print(line)
                above, count = above + (not line.found.passed), count + 1
    print(f"{above} of {count} above their bound, {time.perf_counter() - began:.1f} s")
    return int(above > 0)


if __name__ == "__main__":
    sys.exit(main())
