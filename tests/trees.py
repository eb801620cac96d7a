"""Trees for the tests: every shape that a drafter may hand over, with padding, drawn so that they shrink."""

from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from ssmspec_ref import tree
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Ancestors, Array, Parents

T = TypeVar("T")

SHAPES = ("chain", "star", "comb", "binary", "random")


def parents_of(shape: str, nodes: int, seed: int = 0) -> Array:
    """The parents of one tree: a comb is a chain of which each node has one leaf more."""
    i, rng = np.arange(nodes), np.random.default_rng(seed)
    behind = {
        "chain": i - 1,
        "star": np.zeros_like(i),
        "comb": np.where(i % 2, i - 1, i - 2),
        "binary": (i - 1) // 2,
        "random": rng.integers(0, np.maximum(i, 1)),
    }
    parents = np.array(behind[shape])
    parents[:1] = -1
    return parents


def packed(trees: list[Array], nodes: int) -> Parents:
    """Several trees as rows, with padding behind each."""
    rows = np.full((len(trees), nodes), tree.PADDING)
    for row, parents in zip(rows, trees, strict=True):
        row[: len(parents)] = parents
    return rows


def forest(o: Any) -> Parents:
    """Another tree for each row of a case: padding behind it, a forest in the last row."""
    rng = np.random.default_rng(o.seed)
    shapes = [SHAPES[(i + o.seed) % len(SHAPES)] for i in range(o.b)]
    sizes = [o.t if i == 0 else int(rng.integers(1, o.t + 1)) for i in range(o.b)]
    parents = packed([parents_of(s, size, o.seed + i) for i, (s, size) in enumerate(zip(shapes, sizes, strict=True))], o.t)
    if o.t > 4:
        parents[-1] = parents_of("random", o.t, o.seed)
        parents[-1, 3] = -1
    return parents


def tree_mask(parents: Parents) -> Ancestors:
    """The ancestors of each node, roots anywhere."""
    mask = np.zeros((*parents.shape, parents.shape[1]), dtype=bool)
    for b, row in enumerate(parents):
        for i, above in enumerate(row):
            if above != tree.PADDING:
                mask[b, i] = mask[b, above] if above >= 0 else False
                mask[b, i, i] = True
    return mask


@st.composite
def drawn_trees(draw: st.DrawFn, rows: int, nodes: int) -> Parents:
    """Another tree for every row, of 1 to `nodes` nodes."""
    one = st.tuples(st.sampled_from(SHAPES), st.integers(1, nodes), st.integers(0, 99))
    return packed([parents_of(*draw(one)) for _ in range(rows)], nodes)


def poisoned(window: T, dead: Array) -> T:
    """The window with NaN in every field of the dead tokens."""
    return each(lambda a: np.where(dead.reshape(dead.shape + (1,) * (a.ndim - 2)), np.nan, a), window)


def path_to(parents: Array, node: int) -> list[int]:
    """The nodes from the root to one node."""
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, int(parents[path[0]]))
    return path
