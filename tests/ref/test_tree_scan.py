"""Tree scans: every node equals the plain recurrence along its path."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssmspec_ref import conv, tree
from ssmspec_ref.conv import tree as conv_tree
from ssmspec_ref.errors import NotTopological, PrecisionError, ShapeMismatch
from ssmspec_ref.layers import mixer
from ssmspec_ref.records import along, each, prefix
from ssmspec_ref.shapes import Ancestors, Array
from ssmspec_ref.tree import paths as tree_paths
from tests import families, trees
from tests.families import FAMILIES, KINDS, TOLERANCE, Family, Sizes, deviation
from tests.trees import SCANS, packed, parents_of

TREE = np.array([[-1, 0, 0, 1, 2, 2, 4, 3]])  # two branches, three leaves, depth 3


def by_paths(recurrence: Any, params: Any, S: Array, window: Any, ancestors: Ancestors) -> Array:
    return tree_paths.scan(trees.scan_along(recurrence, params), S, window, ancestors)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", SCANS)
@settings(deadline=None, derandomize=True, max_examples=25)
@given(st.data(), families.seeds, families.drawn_sizes(tokens=20))
def test_every_node_equals_the_recurrence_along_its_path(
    kind: str, family: Family, data: st.DataObject, seed: int, sizes: Sizes
) -> None:
    S, window, params, recurrence, closed = trees.case(kind, seed, sizes, family)
    parents = data.draw(trees.drawn_trees(sizes.b, sizes.t))
    ancestors = tree.ancestors(parents)
    dead = parents == tree.PADDING
    before = each(np.copy, window)
    y = closed.scan(S, trees.poisoned(window, dead), ancestors, params)
    assert deviation(y, by_paths(recurrence, params, S, window, ancestors)) <= TOLERANCE
    assert not y[dead].any()
    assert families.same_bits(window, before)


@pytest.mark.parametrize("kind", SCANS)
def test_a_tree_of_padding_alone_has_outputs_of_zero_in_their_shape(kind: str) -> None:
    """One row that rests: without a node nothing told the shape of an output."""
    S, window, params, recurrence, closed = trees.case(kind, 3, Sizes(b=1, t=6), "gentle")
    ancestors = tree.ancestors(np.full((1, 6), tree.PADDING))
    y = by_paths(recurrence, params, S, window, ancestors)
    assert y.shape == closed.scan(S, window, ancestors, params).shape
    assert not y.any()


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.data(), families.seeds, families.drawn_sizes(tokens=20), st.booleans(), st.booleans())
def test_every_node_reads_the_convolution_along_its_path(
    data: st.DataObject, seed: int, sizes: Sizes, bias: bool, activation: bool
) -> None:
    M, u, params = families.conv_case(seed, sizes, bias, activation)
    parents = data.draw(trees.drawn_trees(sizes.b, sizes.t))
    dead = parents == tree.PADDING
    y = conv_tree.scan(M, trees.poisoned(u, dead), parents, params)
    ref = tree_paths.scan(trees.conv_along(params), M, u, tree.ancestors(parents))
    assert deviation(y, ref) <= TOLERANCE
    assert not y[dead].any()


@pytest.mark.parametrize("width", [2, 3, 4, 5, 7])
def test_a_node_deeper_than_the_window_does_not_read_the_state(width: int) -> None:
    M, u, params = families.conv_case(1, Sizes(b=1, t=9, w=width))
    parents = parents_of("comb", 9)[None]
    shallow = tree.depths(parents)[0] < width - 1
    y = conv_tree.scan(np.full_like(M, np.nan), u, parents, params)[0]
    assert np.isnan(y[shallow]).all()
    assert np.isfinite(y[~shallow]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_whole_layer_equals_its_scan_along_each_path(kind: families.Kind, family: Family) -> None:
    layer, state, inputs = families.layer(kind, 3, Sizes(b=2, t=11, w=3), family)
    parents = packed([parents_of("random", 11, 4), parents_of("binary", 7)], 11)
    live = parents != tree.PADDING
    y, _ = mixer.verify_window(state, trees.poisoned(inputs, ~live), layer, live, parents)
    ref = tree_paths.scan(lambda s, i: mixer.scan(s, i, layer), state, inputs, tree.ancestors(parents))
    assert deviation(y, ref) <= TOLERANCE


@pytest.mark.parametrize("kind", SCANS)
def test_one_node_equals_one_step(kind: str) -> None:
    S, window, params, recurrence, closed = trees.case(kind, 8, Sizes(t=1), "gentle")
    y = closed.scan(S, window, np.ones((2, 1, 1), dtype=bool), params)
    stepped, _ = recurrence.step(S, window.token(0), params)
    assert deviation(y[:, 0], stepped) <= TOLERANCE


@pytest.mark.parametrize("kind", SCANS)
def test_a_chain_is_the_tree_with_one_path(kind: str) -> None:
    S, window, params, recurrence, closed = trees.case(kind, 9, Sizes(t=9), "mamba")
    chain = packed([parents_of("chain", 9)] * 2, 9)
    y, _ = recurrence.scan(S, window, params)
    assert deviation(closed.scan(S, window, tree.ancestors(chain), params), y) <= TOLERANCE


def test_the_convolution_of_a_chain_is_the_tree_with_one_path() -> None:
    M, u, params = families.conv_case(9, Sizes(t=9, w=3))
    y, _ = conv.scan(M, u, params)
    assert deviation(conv_tree.scan(M, u, packed([parents_of("chain", 9)] * 2, 9), params), y) <= TOLERANCE


def reordered(parents: Array, seed: int) -> Array:
    """Another topological order of a tree: order[i] is the old node at new place i."""
    rng, order = np.random.default_rng(seed), [0]
    while len(order) < len(parents):
        ready = [i for i in range(len(parents)) if i not in order and parents[i] in order]
        order.append(int(rng.choice(ready)))
    return np.array(order)


@pytest.mark.parametrize("kind", SCANS)
@pytest.mark.parametrize("shape", ["star", "comb", "binary", "random"])
def test_siblings_may_stand_in_any_order(kind: str, shape: str) -> None:
    S, window, params, _, closed = trees.case(kind, 10, Sizes(b=1, t=10), "gentle")
    parents = parents_of(shape, 10, 3)
    order = reordered(parents, 5)
    assert order.tolist() != list(range(10))
    place = np.argsort(order)
    moved = np.where(parents[order] >= 0, place[parents[order]], -1)
    y = closed.scan(S, window, tree.ancestors(parents[None]), params)
    y_moved = closed.scan(S, along(window, order[None]), tree.ancestors(moved[None]), params)
    assert deviation(y_moved, y[:, order]) <= TOLERANCE


@pytest.mark.parametrize("kind", SCANS)
def test_duplicate_siblings_and_their_children_have_the_same_outputs(kind: str) -> None:
    S, window, params, _, closed = trees.case(kind, 11, Sizes(b=1, t=6), "mamba")
    parents = np.array([[-1, 0, 0, 1, 2, 2]])
    twins = along(window, np.array([[0, 1, 1, 3, 3, 5]]))  # 2 repeats 1, and 4 repeats 3
    y = closed.scan(S, twins, tree.ancestors(parents), params)[0]
    assert deviation(y[2], y[1]) <= TOLERANCE
    assert deviation(y[4], y[3]) <= TOLERANCE
    assert deviation(y[5], y[4]) > 1e-6


@pytest.mark.parametrize("kind", SCANS)
def test_a_longer_envelope_changes_nothing(kind: str) -> None:
    S, window, params, _, closed = trees.case(kind, 12, Sizes(b=2, t=9), "gentle")
    short = packed([parents_of("binary", 5), parents_of("comb", 3)], 5)
    long = packed([parents_of("binary", 5), parents_of("comb", 3)], 9)
    y = closed.scan(S, prefix(window, 5), tree.ancestors(short), params)
    y_long = closed.scan(S, window, tree.ancestors(long), params)
    assert deviation(y_long[:, :5], y) <= TOLERANCE
    assert not y_long[:, 5:].any()


@pytest.mark.parametrize("kind", SCANS)
def test_a_row_alone_and_in_a_batch_of_other_trees_is_the_same(kind: str) -> None:
    S, window, params, _, closed = trees.case(kind, 13, Sizes(b=3, t=8), "gentle")
    parents = packed([parents_of(shape, n) for shape, n in [("star", 8), ("binary", 7), ("comb", 6)]], 8)
    y = closed.scan(S, window, tree.ancestors(parents), params)
    for b in range(3):
        one = slice(b, b + 1)
        alone = closed.scan(S[one], each(lambda a, one=one: a[one], window), tree.ancestors(parents[one]), params)
        assert deviation(alone, y[one]) <= TOLERANCE


@pytest.mark.parametrize("kind", SCANS)
def test_bad_trees_and_arrays_are_refused(kind: str) -> None:
    S, window, params, _, closed = trees.case(kind, 14, Sizes(b=1, t=4), "gentle")
    ancestors = tree.ancestors(parents_of("star", 4)[None])
    with pytest.raises(NotTopological, match="node 0 sees node 1"):
        closed.scan(S, window, ancestors | ancestors.transpose(0, 2, 1), params)
    with pytest.raises(PrecisionError, match="float64"):
        closed.scan(S.astype(np.float32), window, ancestors, params)
    with pytest.raises(ShapeMismatch, match="axis t has size"):
        closed.scan(S, window, ancestors[:, :3, :3], params)
    with pytest.raises(NotTopological):
        conv_tree.scan(np.zeros((1, 2, 3)), np.zeros((1, 2, 2)), np.array([[-1, 1]]), conv.ConvParams(np.ones((2, 3))))


# ------------------------------------------------------------------------------------------------------- planted faults


@pytest.mark.parametrize("kind", SCANS)
def test_planted_lower_triangle_for_the_mask_is_caught(kind: str) -> None:
    S, window, params, recurrence, closed = trees.case(kind, 20, Sizes(b=1, t=8), "gentle")
    ref = by_paths(recurrence, params, S, window, tree.ancestors(TREE))
    leaky = closed.scan(S, window, np.tri(8, dtype=bool)[None], params)
    assert deviation(leaky, ref) > 1e-6
    assert deviation(leaky[:, :2], ref[:, :2]) <= TOLERANCE  # up to the first sibling nothing shows


@pytest.mark.parametrize("kind", SCANS)
def test_planted_mask_after_exp_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def decays(ancestors: Array, log_a: Array) -> tuple[Array, Array]:
        At = np.einsum("btj, bj... -> bt...", ancestors, log_a)
        with np.errstate(over="ignore", invalid="ignore"):
            seen = ancestors.reshape(ancestors.shape + (1,) * (log_a.ndim - 2))
            return np.exp(At), np.exp(At[:, :, None] - At[:, None]) * seen

    S, window, params, recurrence, closed = trees.case(kind, 21, Sizes(b=1, t=20), "hard")
    ancestors = tree.ancestors(parents_of("comb", 20)[None])
    assert (
        deviation(closed.scan(S, window, ancestors, params), by_paths(recurrence, params, S, window, ancestors)) <= TOLERANCE
    )
    monkeypatch.setattr(tree, "decays", decays)
    assert np.isnan(closed.scan(S, window, ancestors, params)).any()


@pytest.mark.parametrize("kind", SCANS)
def test_planted_decay_of_a_nodes_own_input_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = tree.decays

    def decays(ancestors: Array, log_a: Array) -> tuple[Array, Array]:
        from_state, between = right(ancestors, log_a)
        return from_state, between * np.exp(log_a)[:, None]

    S, window, params, recurrence, closed = trees.case(kind, 22, Sizes(b=1, t=8), "gentle")
    ref = by_paths(recurrence, params, S, window, tree.ancestors(TREE))
    monkeypatch.setattr(tree, "decays", decays)
    assert deviation(closed.scan(S, window, tree.ancestors(TREE), params), ref) > 1e-6


@pytest.mark.parametrize("kind", SCANS)
def test_planted_state_decayed_to_the_parent_only_is_caught(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = tree.decays

    def decays(ancestors: Array, log_a: Array) -> tuple[Array, Array]:
        from_state, between = right(ancestors, log_a)
        return from_state * np.exp(-log_a), between

    S, window, params, recurrence, closed = trees.case(kind, 23, Sizes(b=1, t=8), "gentle")
    ref = by_paths(recurrence, params, S, window, tree.ancestors(TREE))
    monkeypatch.setattr(tree, "decays", decays)
    assert deviation(closed.scan(S, window, tree.ancestors(TREE), params), ref) > 1e-6


@pytest.mark.parametrize("kind", SCANS)
def test_planted_child_under_an_equal_token_of_another_branch_is_caught(kind: str) -> None:
    S, window, params, recurrence, closed = trees.case(kind, 24, Sizes(b=1, t=6), "gentle")
    equal = along(window, np.array([[0, 1, 2, 3, 3, 5]]))  # 3 under 1 and 4 under 2 hold the same token
    right, wrong = np.array([[-1, 0, 0, 1, 2, 4]]), np.array([[-1, 0, 0, 1, 2, 3]])
    ref = by_paths(recurrence, params, S, equal, tree.ancestors(right))
    assert deviation(closed.scan(S, equal, tree.ancestors(right), params), ref) <= TOLERANCE
    assert deviation(closed.scan(S, equal, tree.ancestors(wrong), params), ref) > 1e-6


def test_planted_window_by_row_order_is_caught() -> None:
    M, u, params = families.conv_case(25, Sizes(b=1, t=8))
    ref = tree_paths.scan(trees.conv_along(params), M, u, tree.ancestors(TREE))
    by_row = conv_tree.scan_ancestors(M, u, np.tri(8, dtype=bool)[None], params)
    assert deviation(conv_tree.scan(M, u, TREE, params), ref) <= TOLERANCE
    assert deviation(by_row, ref) > 1e-3
