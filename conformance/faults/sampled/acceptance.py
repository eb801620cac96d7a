"""Acceptance that walks, draws or stops wrongly, over the reference's."""

import numpy as np

from ssmspec_ref.shapes import Array

from ...mistakes.mistake import after, before
from ..fault import planted


def last_twin(tokens: Array, parents: Array) -> Array:
    """Of two siblings with the same token the walk goes to the last."""
    latest = tokens.copy()
    for b, row in enumerate(parents):
        for node in range(1, len(row)):
            twins = (row[node + 1 :] == row[node]) & (tokens[b, node + 1 :] == tokens[b, node])
            latest[b, node] = -5 if row[node] >= 0 and twins.any() else tokens[b, node]
    return latest


def other_stride(path: Array) -> Array:
    """The rows of the path are read with a stride that is one node too small. sgl-project/sglang#26866."""
    rows, nodes = np.indices(path.shape)
    return path.ravel()[rows * max(path.shape[1] - 1, 1) + nodes]


def picked(emitted: Array, path: Array, advanced: Array, ended: Array, p: Array, picks: Array) -> Array:
    """Runs whose last token is picked from the target's distribution."""
    emitted = emitted.copy()
    for b, count in enumerate(advanced):
        last = path[b, count - 1]
        if not ended[b]:
            emitted[b, count - 1] = np.searchsorted(np.cumsum(p[b, last]), picks[b, last], side="right")
    return emitted


GREEDY, SAMPLED = "acceptance.greedy", "acceptance.sampled"
FAULTS = planted(
    (
        before(
            "ignores_the_end",
            "An end-of-sequence token inside a window does not end the run. Bug class STOP.",
            eos=(),
        ),
        GREEDY,
        "STOP",
    ),
    (
        before(
            "spends_one_more",
            "The target's own token is not counted in the budget.",
            budget=lambda budget: budget + 1,
        ),
        GREEDY,
        "STOP",
    ),
    (before(tokens=last_twin), GREEDY, "GREEDY"),
    (
        after(
            "path_without_root",
            "The path holds the drafts only, so that the root never enters the state. Bug class ACCEPT-IDX.",
            path=lambda path: np.concatenate([path[:, 1:], np.full_like(path[:, :1], -1)], axis=1),
        ),
        GREEDY,
        "ACCEPT-IDX",
    ),
    (after(path=other_stride), GREEDY, "TREE-COMMIT"),
    (
        before(
            "independent_siblings",
            "Siblings drawn without replacement are accepted as if each was drawn from q.",
            law=lambda law: "iid" if law == "without_replacement" else law,
        ),
        SAMPLED,
        "Q-MISMATCH",
    ),
    (
        after(
            "picks_from_the_target",
            "After a rejection the token is picked from p instead of the residual.",
            emitted=lambda own, path, advanced, ended, p, picks, law: (
                own if law == "naive" else picked(own, path, advanced, ended, p, picks)
            ),
        ),
        SAMPLED,
        "ACCEPT-RULE",
    ),
    (
        before(
            "noise_of_the_parent",
            "A child's coin is read at its parent's index.",
            coins=lambda coins, parents: np.take_along_axis(coins, np.maximum(parents, 0), axis=1),
        ),
        SAMPLED,
        "RNG",
    ),
)
