"""Accepted tokens followed by a window, node by node: the ancestors of each node, and its path as a separate row."""

import numpy as np

from ssmspec_ref import tree
from ssmspec_ref.shapes import Ancestors, Array, Mask, Parents, Path

LONGEST = 24
"""Windows of a history of which every node is tested; of a longer one the accepted tokens are, in one run."""


def behind(counted: Mask, parents: Parents | None, tokens: int) -> Ancestors:
    """The ancestors in a run of accepted tokens followed by a window; tokens that were not accepted are padding."""
    count, before = counted.shape
    mask = np.zeros((count, before + tokens, before + tokens), dtype=bool)
    mask[:, :before, :before] = np.tri(before, dtype=bool) & counted[:, None] & counted[:, :, None]
    window = (
        np.broadcast_to(np.tri(tokens, dtype=bool), (count, tokens, tokens)) if parents is None else tree.ancestors(parents)
    )
    mask[:, before:, before:] = window
    mask[:, before:, :before] = counted[:, None] & np.einsum("btt -> bt", window)[:, :, None]
    return mask


def ends(y: Array, live: Mask, tokens: int) -> Array:
    """The last token of each path, as nodes: `tokens` for every sequence; 0 if a path is empty."""
    last = y[np.arange(len(live)), live.sum(axis=1) - 1]
    reached = live.any(axis=1).reshape((-1,) + (1,) * (last.ndim - 1))
    return np.where(reached, last, 0.0).reshape(-1, tokens, *last.shape[1:])


def back(run: Array, path: Path) -> tuple[Array, Mask]:
    """The outputs at the accepted tokens of a window (b t ..), moved from path order to its nodes, and a mask of these."""
    rows, nodes = np.nonzero(path >= 0)
    found, reached = np.zeros(run.shape), np.zeros(path.shape, dtype=bool)
    found[rows, path[rows, nodes]], reached[rows, path[rows, nodes]] = run[rows, nodes], True
    return found, reached


def paths(ancestors: Ancestors, tokens: int) -> tuple[Array, Path]:
    """The path of each of the last `tokens` nodes as a separate row, and the sequence of that row."""
    nodes = ancestors[:, -tokens:].reshape(-1, ancestors.shape[2])
    path = np.full((len(nodes), max(1, int(nodes.sum(axis=1).max()))), -1, dtype=np.int64)
    for r, seen in enumerate(nodes):
        path[r, : seen.sum()] = np.flatnonzero(seen)
    return np.repeat(np.arange(len(ancestors)), tokens), path
