"""Derivations that no adapter that ships has a place for, in the shape of an operation: attention over whole sequences, the
longest prefix of a chain, joint attainment of trees. Nothing here computes: it cuts, turns and places.
"""

from typing import Any

import numpy as np

from conformance.adapters.reference_parts.acceptance import Runs, padded
from conformance.adapters.reference_parts.backtracking import SEQUENTIAL, Backtracking
from ssmspec_ref import tree
from ssmspec_ref.accept import greedy
from ssmspec_ref.attention import AttentionParams, AttentionWindow
from ssmspec_ref.attention import dense as attention_dense
from ssmspec_ref.backtrack import Accepted, Draft, joint
from ssmspec_ref.contract import FLOAT64, Capability, Limits, NumericContract, Subject
from ssmspec_ref.layers import rotary
from ssmspec_ref.layers.mixer import Mixer, MixerInputs, MixerState
from ssmspec_ref.records import along, concat, rows
from ssmspec_ref.shapes import Ancestors, Array, Lengths, Parents, Path

SINGLE = NumericContract()
"""Declared of attention, though it computes in float64: that keys are turned back and again is in no bound."""
THETA = 50.0
"""A base by which channels turn visibly from one token to the next."""


def attention_tree(
    K: Array, V: Array, length: Lengths, q: Array, k: Array, v: Array, ancestors: Ancestors, scale: Any
) -> Array:
    """Every node as the last token of a sequence of its own: what is committed, then its path.

    Keys and queries come turned to their positions; they are turned back, since the dense form turns by distance.
    """
    y, channels = np.zeros(q.shape, dtype=np.float32), q.shape[3]
    turn = rotary.frequencies(channels - channels % 2, THETA)
    for row, node in np.argwhere(ancestors.any(axis=2)):
        path = np.flatnonzero(ancestors[row, node])
        keys, values = (np.concatenate([old[row, : length[row]], new[row, path]])[None] for old, new in ((K, k), (V, v)))
        asked = np.zeros((1, keys.shape[1], *q.shape[2:]))
        asked[0, -1] = q[row, node]
        back = -np.arange(keys.shape[1])[None]
        window = AttentionWindow(rotary.rotate(asked, back, turn), rotary.rotate(keys, back, turn), values)
        y[row, node] = attention_dense.scan(window, AttentionParams(scale, turn))[0, -1]
    return y


def accept_chain(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """The longest prefix of a chain that stands."""
    counts = enumerate(tree.sizes(parents))
    runs = [greedy.chain(tokens[b, 1:count].tolist(), choice[b, :count].tolist()) for b, count in counts]
    return padded(runs, tokens.shape[1], budget, eos)


class NodeRows(Backtracking):
    """Joint attainment of trees: the path of every node is a row of its own, the last node's first; padding's are empty, and
    a tree that is padding throughout has one."""

    def __init__(self, mixer: Mixer, state: MixerState) -> None:
        super().__init__(joint, mixer, state)

    def verify(self, inputs: MixerInputs, parents: Parents | None = None) -> Array:
        self.begin = 0 if self.tokens is None else self.tokens.pre.shape[1]
        self.tokens = inputs if self.tokens is None else concat(self.tokens, inputs)
        sequences, count = inputs.pre.shape[:2]
        ancestors = np.tri(count, dtype=bool)[None].repeat(sequences, 0) if parents is None else tree.ancestors(parents)
        rests = ~ancestors.any(axis=(1, 2))
        nodes = [(b, i) for b in range(sequences) for i in reversed(range(1 if rests[b] else count))]
        self.row = {node: r for r, node in enumerate(nodes)}
        paths = [self._path(b, np.flatnonzero(ancestors[b, i])) for b, i in nodes]
        lengths, sequence = np.array(list(map(len, paths))), np.array([b for b, _ in nodes])
        index = np.full((len(paths), max(1, lengths.max())), -1)
        for r, path in enumerate(paths):
            index[r, : len(path)] = path
        draft = Draft(along(rows(self.tokens, sequence), index), lengths, sequence)
        y, self.pending = joint.verify(self.kept, draft, self.mixer)
        out = np.zeros((sequences, count, *y.shape[2:]))
        for r, (b, i) in enumerate(nodes):
            out[b, i] = y[r, lengths[r] - 1] if lengths[r] else 0.0
        return out

    def _path(self, b: int, nodes: Array) -> list[int]:
        """What the sequence lags by, then the path; nothing for padding."""
        lag = joint.refeed(self.kept)[b]
        return [*self._last(b, lag), *(self.begin + int(node) for node in nodes)] if len(nodes) else []

    def commit(self, advanced: Lengths, path: Path) -> None:
        last = path[np.arange(len(path)), np.maximum(advanced - 1, 0)]
        row = np.array([self.row[b, max(int(node), 0)] for b, node in enumerate(last)])
        self.kept = joint.commit(self.pending, Accepted(advanced, row), self.mixer)
        for b, count in enumerate(advanced):
            self.accepted[b] += [self.begin + int(node) for node in path[b, :count]]


CHAINS = Limits({"tree": ("chain",)}, reason="chains only")


def subjects() -> tuple[Subject, ...]:
    """Each with the one operation that it has."""
    made: dict[str, dict[str, Capability]] = {
        "attention over whole sequences": {"attention.verify_tree": Capability(attention_tree, SINGLE)},
        "longest prefix": {"acceptance.greedy": Capability(accept_chain, FLOAT64, CHAINS)},
        "joint attainment, a row for every node": {
            name: Capability(NodeRows, SEQUENTIAL) for name in ("speculate.chain", "speculate.tree")
        },
    }
    return tuple(Subject(name, found, absent={"": "judged as another derivation"}) for name, found in made.items())
