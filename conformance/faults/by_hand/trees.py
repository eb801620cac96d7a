"""Trees whose root, or what lies before the window, is taken for something else."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ssmspec_ref import conv, tree
from ssmspec_ref.layers import mixer
from ssmspec_ref.records import along
from ssmspec_ref.shapes import Array, Lengths, Parents, Path

from ...adapters.reference_parts.backtracking import Backtracking
from ...mistakes.operators import without_the_root
from ..fault import planted
from ..windows import Snapshots, Windows

Columns = Callable[[Array, int, int], Array]


def gathered(M: Array, u: Array, parents: Parents, params: Any, columns: Columns) -> Array:
    """The convolution of every node over columns of the state and the nodes; `columns` takes a node's path and the width."""
    every, seen = np.concatenate([M, u.transpose(0, 2, 1)], axis=2), tree.ancestors(parents)
    y = np.zeros_like(u)
    for b, node in np.argwhere(parents != tree.PADDING):
        taps = columns(np.flatnonzero(seen[b, node]), int(node), params.width)
        y[b, node] = conv.read(every[b : b + 1, :, taps], params)[0]
    return y


def walk_ends_before_the_root(M: Array, u: Array, parents: Parents, params: Any) -> Array:
    """The walk to the parents ends before the root: in its place a node reads the newest column of the state."""

    def columns(path: Array, node: int, width: int) -> Array:
        walked = path if node == 0 else path[1:]
        return np.concatenate([np.arange(width), width + walked])[-width:]

    return gathered(M, u, parents, params, columns)


def columns_by_the_number(M: Array, u: Array, parents: Parents, params: Any) -> Array:
    """Taps before the window are found by the number of the node, not by its depth, and end at the newest column."""

    def columns(path: Array, node: int, width: int) -> Array:
        back = np.arange(width - 1, len(path) - 1, -1)
        return np.concatenate([np.minimum(width + node - back, width - 1), width + path[-width:]])

    return gathered(M, u, parents, params, columns)


def walk_of_three(M: Array, u: Array, parents: Parents, params: Any) -> Array:
    """The walk to the parents ends after three steps, as four taps need it; more taps read the nodes before the last one."""

    def columns(path: Array, node: int, width: int) -> Array:
        near = path[-4:]
        before = near[0] - np.arange(width - len(near), 0, -1) if len(near) == 4 else np.arange(len(near) - width, 0)
        return np.concatenate([width + before, width + near])[-width:]

    return gathered(M, u, parents, params, columns)


def zero_is_padding(M: Array, u: Array, path: Path) -> Array:
    """An entry 0 of a path is taken for padding, so that the input of the root is dropped."""
    kept = without_the_root(path)
    return conv.commit(M, along(u, kept), (kept >= 0).sum(axis=1))


def replays_without_the_root(inner: Backtracking, commit: Callable[[], None], path: Path) -> None:
    """Commits the state after all tokens of the path but the root."""
    held, inputs, kept = inner.kept, inner.pending.draft.inputs, without_the_root(path)
    commit()
    inner.kept = mixer.scan(held, along(inputs, kept), inner.mixer, kept >= 0)[1]


class ZeroIsPadding(Snapshots):
    """In a layer, an entry 0 of a path is taken for padding, so that the root enters neither window nor state."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        replays_without_the_root(self, lambda: Snapshots.commit(self, advanced, path), path)


class ZeroIsPaddingInReplay(Windows):
    """An entry 0 of a path is taken for padding, so that the root is not replayed."""

    def commit(self, advanced: Lengths, path: Path) -> None:
        assert self.inner is not None
        replays_without_the_root(self.inner, lambda: Windows.commit(self, advanced, path), path)


FAULTS = planted(
    (walk_ends_before_the_root, "conv.verify_tree", "TREE-TOPO"),
    (columns_by_the_number, "conv.verify_tree", "TREE-TOPO"),
    (walk_of_three, "conv.verify_tree", "TREE-TOPO"),
    (zero_is_padding, "conv.commit_path", "TREE-COMMIT"),
    (ZeroIsPadding, "speculate.chain", "TREE-COMMIT"),
    (ZeroIsPadding, "speculate.tree", "TREE-COMMIT"),
    *((ZeroIsPaddingInReplay, f"{rule}.verify_replay", "TREE-COMMIT") for rule in ("ssd", "delta")),
)
