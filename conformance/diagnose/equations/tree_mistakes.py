"""Trees whose nodes are read at another place: parents, depths, roots, too few places, rows and decays of other nodes."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ssmspec_ref.shapes import Array
from ssmspec_ref.tree import PADDING

from ...suite.specification import Arguments
from ..leaves import Leaf, changed
from .misread import TAKEN
from .step_sizes import PACKED, Made, Named, packed_gates

PLACES = (8, 16, 32, 64)
"""Places that an implementation may have for the nodes of a tree."""
EACH = "*"
"""What the path of an input of every window holds."""

Of = Callable[[Callable[[Arguments, Named], Arguments]], Callable[[Arguments], Arguments]]
"""Makes a function of the arguments of one that also takes their leaves by name."""


def tree_mistakes(every: list[Leaf], named: Named, of: Of) -> Made:
    """Each mistake of a tree that the inputs allow."""
    if not {"parents", "ancestors"}.isdisjoint(named):
        yield "the parent of a node were the last node one level above it", of(_last_above)
    if {"ancestors"} <= named.keys():
        for leaf in every:
            if leaf.axes[:2] == ("b", "t") and isinstance(leaf.value, np.ndarray) and leaf.value.dtype.kind == "f":
                yield f"a node read {leaf.name} at its depth, not at its own place", of(partial(_at_depth, leaf.name))
                yield f"a node read {leaf.name} of its parent", of(partial(_at_parent, leaf.name))
        yield "a node that hangs on node 0 began from the state passed in", of(_without_root)
        for places in PLACES:
            if places < named["ancestors"].value.shape[1]:
                yield TAKEN.format(places), of(partial(_overwritten, places))
    if {"p", "parents"} <= named.keys() and named["p"].value.ndim == 3:
        yield "the token after an accepted leaf were drawn from the row of its parent", of(_row_of_parent)
    if {"ancestors", "g"} <= named.keys() and EACH not in named["g"].path:
        yield PACKED, of(packed_gates)


def _last_above(arguments: Arguments, named: Named) -> Arguments:
    """Of a tree given by parents or by ancestors."""
    if (parents := named.get("parents")) is not None:
        return changed(arguments, (parents, _parents_above))
    return changed(arguments, (named["ancestors"], _seen_above))


def _parents_above(parents: Array) -> Array:
    made = parents.copy()
    for b, row in enumerate(parents):
        depth: list[int] = []
        for node, parent in enumerate(row):
            depth.append(depth[parent] + 1 if parent >= 0 else 0)
            above = [n for n in range(node) if depth[n] == depth[node] - 1 and row[n] != PADDING]
            if parent >= 0:
                made[b, node] = above[-1]
    return made


def _seen_above(seen: Array) -> Array:
    made = np.zeros_like(seen)
    for b, mask in enumerate(seen):
        depth = mask.sum(axis=1)
        for node in np.flatnonzero(np.diag(mask)):
            above = [n for n in range(node) if depth[n] == depth[node] - 1 and mask[n, n]]
            made[b, node] = made[b, above[-1]] if above else False
            made[b, node, node] = True
    return made


def _at_depth(name: str, arguments: Arguments, named: Named) -> Arguments:
    depth = np.maximum(named["ancestors"].value.sum(axis=2) - 1, 0)
    return changed(arguments, (named[name], lambda a: a[np.arange(len(a))[:, None], depth]))


def _at_parent(name: str, arguments: Arguments, named: Named) -> Arguments:
    seen = named["ancestors"].value
    above = seen & ~np.eye(seen.shape[1], dtype=bool)
    own = np.arange(seen.shape[1])
    parent = np.where(above.any(axis=2), own[-1] - above[:, :, ::-1].argmax(axis=2), own)
    return changed(arguments, (named[name], lambda a: a[np.arange(len(a))[:, None], parent]))


def _without_root(arguments: Arguments, named: Named) -> Arguments:
    def without(a: Array) -> Array:
        made = a.copy()
        made[:, 1:, 0] = False
        return made

    return changed(arguments, (named["ancestors"], without))


def _overwritten(places: int, arguments: Arguments, named: Named) -> Arguments:
    """A node's parent is the last node before it in its parent's place."""

    def taken(seen: Array) -> Array:
        made = np.zeros_like(seen)
        for b, mask in enumerate(seen):
            for node in np.flatnonzero(np.diag(mask)):
                if len(before := np.flatnonzero(mask[node, :node])):
                    last = before[-1]
                    made[b, node] = made[b, last + (node - 1 - last) // places * places]
                made[b, node, node] = True
        return made

    return changed(arguments, (named["ancestors"], taken))


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
