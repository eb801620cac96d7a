"""The tree mask, and which masks have a tree scan."""

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref import tree
from ssmspec_ref.errors import EmptyWindow, NotNested, NotTopological, PrecisionError, ShapeMismatch
from tests import trees
from tests.families import Sizes, deviation, examples
from tests.trees import parents_of, path_to

from .recurrences import BY_DECAYS, VARIANTS, case
from .refusals import refused


@examples(40)
@given(st.data(), st.integers(1, 4), st.integers(1, 20))
def test_the_mask_is_the_ancestors_of_a_graph_library(data: st.DataObject, rows: int, nodes: int) -> None:
    parents = data.draw(trees.drawn_trees(rows, nodes))
    mask = tree.ancestors(parents)
    for b in range(rows):
        graph = nx.DiGraph((int(p), i) for i, p in enumerate(parents[b]) if p >= 0)
        graph.add_node(0)
        for i in range(nodes):
            above = nx.ancestors(graph, i) | {i} if i in graph else set()
            assert set(np.flatnonzero(mask[b, i])) == above
            assert tree.depths(parents)[b, i] == (nx.shortest_path_length(graph, 0, i) if i in graph else -1)
    assert np.array_equal(tree.parents(mask), parents)
    assert np.array_equal(tree.live(mask), parents != tree.PADDING)


def test_the_mask_of_a_row_that_takes_no_part_is_empty() -> None:
    assert not tree.ancestors(np.array([[-2, -2], [-1, 0]]))[0].any()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([0, 0], "node 0 has parent 0; node 0 is the root"),
        ([-1, 1], "node 1 has parent 1; a parent comes before its child: give 0 to 0"),
        ([-1, 2, 0], "node 1 has parent 2"),
        ([-1, -1], "node 1 has parent -1"),
        ([-1, -3], "node 1 has parent -3"),
        ([-1, -2, 0], "there is padding between nodes"),
        ([-2, 0, 1], "node 0 has parent -2"),
    ],
)
def test_parents_out_of_order_are_refused(row: list[int], words: str) -> None:
    parents = np.array([[-1] + [0] * (len(row) - 1), row])
    refused(NotTopological, f"row 1: {words}", tree.ancestors, parents)


def test_parents_of_another_type_or_shape_are_refused() -> None:
    refused(PrecisionError, "int64", tree.ancestors, np.array([[-1, 0]], dtype=np.int32))
    refused(ShapeMismatch, "", tree.ancestors, np.array([-1, 0]))
    refused(EmptyWindow, "", tree.ancestors, np.zeros((2, 0), dtype=np.int64))


def every_mask(nodes: int) -> list[np.ndarray]:
    """All lower-triangular masks in which every node sees itself."""
    below = list(zip(*np.tril_indices(nodes, -1), strict=True))
    masks = []
    for bits in itertools.product([False, True], repeat=len(below)):
        mask = np.eye(nodes, dtype=bool)
        for (i, j), bit in zip(below, bits, strict=True):
            mask[i, j] = bit
        masks.append(mask[None])
    return masks


@pytest.mark.parametrize("kind", BY_DECAYS)
def test_masks_are_refused_exactly_where_the_closed_form_is_wrong(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    c = case(kind, 5, Sizes(b=1, t=4))
    masks, refused = every_mask(4), []
    for mask in masks:
        try:
            tree.check_nested(mask)
            refused.append(False)
        except NotNested:
            refused.append(True)
    monkeypatch.setattr(tree, "check_nested", lambda ancestors: None)
    for mask, no in zip(masks, refused, strict=True):
        wrong = deviation(c.tree(mask), c.along(mask))
        assert wrong > 1e-7 if no else wrong <= 1e-12, mask.astype(int)
    assert refused.count(False) == 1 * 2 * 3 * 4  # every node but the first chooses a node before it, or none: a forest


@pytest.mark.parametrize("kind", VARIANTS)
def test_a_forest_with_gaps_is_read_like_its_paths(kind: str) -> None:
    c = case(kind, 6, Sizes(b=1, t=7))
    parents, mask = [-1, 0, -2, -1, 0, 3, 5], np.zeros((1, 7, 7), dtype=bool)
    for i in (0, 1, 3, 4, 5, 6):
        mask[0, i, path_to(np.array(parents), i)] = True
    assert tree.parents(mask).tolist() == [parents]
    dead = ~tree.live(mask)
    y = c.of(trees.poisoned(c.window, dead)).tree(mask)
    assert c.near(y, c.along(mask))
    assert not y[dead].any()


def diamond() -> np.ndarray:
    mask = np.eye(4, dtype=bool)
    mask[:, 0] = mask[3] = True
    return mask[None]


@pytest.mark.parametrize("kind", VARIANTS)
def test_a_mask_that_does_not_nest_is_refused_with_the_pair_of_nodes(kind: str) -> None:
    refused(
        NotNested,
        "row 0: node 3 sees node 2, but only one of them sees node 1",
        case(kind, 7, Sizes(b=1, t=4)).tree,
        diamond(),
    )
    gap = np.tri(3, dtype=bool)[None]
    gap[0, 2, 0] = False  # 2 sees 1, which sees 0, but 2 does not see 0
    refused(NotNested, "node 2 sees node 1, but only one of them sees node 0", tree.check_nested, gap)


def test_masks_that_are_no_masks_are_refused() -> None:
    later = np.ones((1, 2, 2), dtype=bool)
    refused(NotTopological, "node 0 sees node 1, which comes later", tree.check_nested, later)
    blind = np.array([[[True, False], [True, False]]])
    refused(NotNested, "node 1 sees other nodes but not itself", tree.check_nested, blind)
    refused(ShapeMismatch, "2 rows and 3 columns", tree.check_nested, np.zeros((1, 2, 3), dtype=bool))
    refused(PrecisionError, "bool", tree.check_nested, np.ones((1, 1, 1)))


def test_a_transitive_mask_is_not_enough() -> None:
    mask = diamond()[0]
    assert all(
        set(np.flatnonzero(mask[j])) <= set(np.flatnonzero(mask[i])) for i in range(4) for j in np.flatnonzero(mask[i])
    )
    refused(NotNested, "", tree.check_nested, diamond())


def test_planted_padding_read_as_an_index_is_caught() -> None:
    """parent -2 taken as the second node from the end: padding gets ancestors."""
    parents = trees.packed([parents_of("star", 3)], 5)
    mask = np.eye(5, dtype=bool)
    for i in range(1, 5):
        mask[i] |= mask[parents[0, i]]
    right = tree.ancestors(parents)[0]
    assert np.array_equal(mask[:3], right[:3])
    assert mask[3:].any()
    assert not right[3:].any()
