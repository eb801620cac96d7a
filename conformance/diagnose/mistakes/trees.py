"""Trees whose nodes are read at another place: parents, depths, roots, too few places, rows and decays of other nodes."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ssmspec_ref import tree
from ssmspec_ref.shapes import Array

from ..leaves import Leaf
from .named import EACH, Made, Named, Of
from .step_sizes import PACKED, packed

PLACES = (8, 16, 32, 64)
"""Places that an implementation may have for the nodes of a tree."""
TAKEN = "nodes lay in {0} places, by their numbers modulo {0}, so that later nodes took the places of parents"
"""Too few places for what nodes leave."""


def tree_mistakes(every: list[Leaf], named: Named, of: Of) -> Made:
    """Each mistake of a tree that the inputs allow."""
    if not {"parents", "ancestors"}.isdisjoint(named):
        yield "the parent of a node were the last node one level above it", of(**_hung(named, _above))
        yield "a node began where the child of its parent before it ended, not at its parent", of(**_hung(named, _elder))
        for places in PLACES:
            yield TAKEN.format(places), of(**_hung(named, partial(_overwritten, places)))
    if {"ancestors"} <= named.keys():
        for leaf in every:
            if leaf.axes[:2] == ("b", "t") and isinstance(leaf.value, np.ndarray) and leaf.value.dtype.kind == "f":
                yield f"a node read {leaf.name} at its depth, not at its own place", of(**{leaf.name: _at_depth})
                yield f"a node read {leaf.name} of its parent", of(**{leaf.name: _at_parent})
        yield "a node that hangs on node 0 began from the state passed in", of(ancestors=_without_root)
    if {"p", "parents"} <= named.keys() and named["p"].value.ndim == 3:
        yield "the token after an accepted leaf were drawn from the row of its parent", of(p=_row_of_parent)
    if {"ancestors", "g"} <= named.keys() and EACH not in named["g"].path:
        yield PACKED, of(g=lambda g, ancestors: packed(g, ancestors))


def _hung(named: Named, change: Callable[[Array], Array]) -> dict[str, Callable[[Array], Array]]:
    """Other parents, of a tree given by parents or by ancestors."""
    if named.get("parents") is not None:
        return {"parents": change}
    return {"ancestors": lambda own: tree.ancestors(change(tree.parents(own)))}


def _above(parents: Array) -> Array:
    """The parent of each node is the last node one level above it."""
    made = parents.copy()
    for b, row in enumerate(parents):
        depth: list[int] = []
        for node, parent in enumerate(row):
            depth.append(depth[parent] + 1 if parent >= 0 else 0)
            above = [n for n in range(node) if depth[n] == depth[node] - 1 and row[n] != tree.PADDING]
            if parent >= 0:
                made[b, node] = above[-1]
    return made


def _elder(parents: Array) -> Array:
    """The parent of each node is the child of its parent before it; of the first child it stays."""
    made = parents.copy()
    for b, row in enumerate(parents):
        for node, parent in enumerate(row):
            elder = np.flatnonzero(row[:node] == parent)
            if parent >= 0 and len(elder):
                made[b, node] = elder[-1]
    return made


def _at_depth(own: Array, ancestors: Array) -> Array:
    return own[np.arange(len(own))[:, None], np.maximum(ancestors.sum(axis=2) - 1, 0)]


def _at_parent(own: Array, ancestors: Array) -> Array:
    parents = tree.parents(ancestors)
    return own[np.arange(len(own))[:, None], np.where(parents >= 0, parents, np.arange(parents.shape[1]))]


def _without_root(ancestors: Array) -> Array:
    made = ancestors.copy()
    made[:, 1:, 0] = False
    return made


def _overwritten(places: int, parents: Array) -> Array:
    """The parent of each node is the last node before it in its parent's place."""
    nodes = np.arange(parents.shape[1])
    return np.where(parents >= 0, parents + (nodes - 1 - parents) // places * places, parents)


def _row_of_parent(p: Array, parents: Array) -> Array:
    made = p.copy()
    for b, row in enumerate(parents):
        for node, parent in enumerate(row):
            if parent >= 0 and node not in row:
                made[b, node] = p[b, parent]
    return made
