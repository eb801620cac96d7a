"""Trees whose nodes are read at another place: parents, depths, roots, too few places, rows and decays of other nodes."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ssmspec_ref import tree
from ssmspec_ref.shapes import Array

from ...suite.specification import Arguments
from ..leaves import Leaf, changed
from .named import EACH, Made, Named, Of
from .step_sizes import PACKED, packed_gates

PLACES = (8, 16, 32, 64)
"""Places that an implementation may have for the nodes of a tree."""
TAKEN = "nodes lay in {0} places, by their numbers modulo {0}, so that later nodes took the places of parents"
"""Too few places for what nodes leave."""


def tree_mistakes(every: list[Leaf], named: Named, of: Of) -> Made:
    """Each mistake of a tree that the inputs allow."""
    if not {"parents", "ancestors"}.isdisjoint(named):
        yield "the parent of a node were the last node one level above it", of(partial(_hung, _above))
        yield "a node began where the child of its parent before it ended, not at its parent", of(partial(_hung, _elder))
        for places in PLACES:
            yield TAKEN.format(places), of(partial(_hung, partial(_overwritten, places)))
    if {"ancestors"} <= named.keys():
        for leaf in every:
            if leaf.axes[:2] == ("b", "t") and isinstance(leaf.value, np.ndarray) and leaf.value.dtype.kind == "f":
                yield f"a node read {leaf.name} at its depth, not at its own place", of(partial(_at_depth, leaf.name))
                yield f"a node read {leaf.name} of its parent", of(partial(_at_parent, leaf.name))
        yield "a node that hangs on node 0 began from the state passed in", of(_without_root)
    if {"p", "parents"} <= named.keys() and named["p"].value.ndim == 3:
        yield "the token after an accepted leaf were drawn from the row of its parent", of(_row_of_parent)
    if {"ancestors", "g"} <= named.keys() and EACH not in named["g"].path:
        yield PACKED, of(packed_gates)


def _hung(change: Callable[[Array], Array], arguments: Arguments, named: Named) -> Arguments:
    """Other parents, of a tree given by parents or by ancestors."""
    if (parents := named.get("parents")) is not None:
        return changed(arguments, (parents, change))
    return changed(arguments, (named["ancestors"], lambda seen: tree.ancestors(change(tree.parents(seen)))))


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


def _at_depth(name: str, arguments: Arguments, named: Named) -> Arguments:
    depth = np.maximum(named["ancestors"].value.sum(axis=2) - 1, 0)
    return changed(arguments, (named[name], lambda a: a[np.arange(len(a))[:, None], depth]))


def _at_parent(name: str, arguments: Arguments, named: Named) -> Arguments:
    parents = tree.parents(named["ancestors"].value)
    parent = np.where(parents >= 0, parents, np.arange(parents.shape[1]))
    return changed(arguments, (named[name], lambda a: a[np.arange(len(a))[:, None], parent]))


def _without_root(arguments: Arguments, named: Named) -> Arguments:
    def without(a: Array) -> Array:
        made = a.copy()
        made[:, 1:, 0] = False
        return made

    return changed(arguments, (named["ancestors"], without))


def _overwritten(places: int, parents: Array) -> Array:
    """The parent of each node is the last node before it in its parent's place."""
    nodes = np.arange(parents.shape[1])
    return np.where(parents >= 0, parents + (nodes - 1 - parents) // places * places, parents)


def _row_of_parent(arguments: Arguments, named: Named) -> Arguments:
    parents = named["parents"].value

    def of_parent(p: Array) -> Array:
        made = p.copy()
        for b, row in enumerate(parents):
            for node, parent in enumerate(row):
                if parent >= 0 and node not in row:
                    made[b, node] = p[b, parent]
        return made

    return changed(arguments, (named["p"], of_parent))
