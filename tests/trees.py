"""Trees for the tests: every shape that a drafter may hand over, with padding, drawn so that they shrink."""

from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from ssmspec_ref import conv, delta, selective, ssd, tree
from ssmspec_ref.delta import tree as delta_tree
from ssmspec_ref.records import each
from ssmspec_ref.selective import tree as selective_tree
from ssmspec_ref.shapes import Array, Parents
from ssmspec_ref.ssd import tree as ssd_tree
from tests import families
from tests.families import Family, Sizes

T = TypeVar("T")

SHAPES = ("chain", "star", "comb", "binary", "random")
SCANS = ("ssd", "ssd_plain", "delta", "delta_channel", "selective")


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


def case(kind: str, seed: int, sizes: Sizes, family: Family) -> tuple[Array, Any, Any, Any, Any]:
    """A state, a window, parameters, and the modules of the recurrence and of its tree scan."""
    match kind:
        case "ssd":
            return *families.ssd_case(seed, sizes, family, D="channel", dt_limit=(1e-3, 50.0)), ssd, ssd_tree
        case "ssd_plain":
            return *families.ssd_case(seed, sizes, family, z=False, D=None, bias=False, dt_softplus=False), ssd, ssd_tree
        case "delta":
            return *families.delta_case(seed, sizes, family), delta, delta_tree
        case "delta_channel":
            return *families.delta_case(seed, sizes, family, True, 2.0, False, 0.7), delta, delta_tree
        case "selective":
            return *families.selective_case(seed, sizes, family), selective, selective_tree
    raise AssertionError(kind)


def poisoned(window: T, dead: Array) -> T:
    """The window with NaN in every field of the dead tokens."""
    return each(lambda a: np.where(dead.reshape(dead.shape + (1,) * (a.ndim - 2)), np.nan, a), window)


def conv_along(params: conv.ConvParams) -> Any:
    """The plain scan of a convolution, for `tree_paths`."""
    return lambda M, u: conv.scan(M, u, params)


def scan_along(recurrence: Any, params: Any) -> Any:
    """The plain scan of a recurrence, for `tree_paths`."""
    return lambda S, window: recurrence.scan(S, window, params)


def path_to(parents: Array, node: int) -> list[int]:
    """The nodes from the root to one node."""
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, int(parents[path[0]]))
    return path
