"""Trees for the tests: every shape that a drafter may hand over, with padding, drawn so that they shrink."""

from typing import TypeVar

import numpy as np
from hypothesis import strategies as st

from ssmspec_ref import tree
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array, Parents

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
