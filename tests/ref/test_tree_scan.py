"""Tree scans: every node equals the plain recurrence, or the plain convolution, along its path."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref import conv, tree
from ssmspec_ref.conv import tree as conv_tree
from ssmspec_ref.errors import NotTopological, PrecisionError, ShapeMismatch
from ssmspec_ref.layers import mixer
from ssmspec_ref.records import along, each, prefix, rows
from ssmspec_ref.shapes import Array
from ssmspec_ref.tree import paths as tree_paths
from tests import families, trees
from tests.families import Family, Sizes, deviation, each_family, each_kind, examples
from tests.trees import packed, parents_of

from .recurrences import ALL, BY_DECAYS, VARIANTS, case
from .refusals import refused

TREE = np.array([[-1, 0, 0, 1, 2, 2, 4, 3]])  # two branches, three leaves, depth 3
of_every = pytest.mark.parametrize("kind", VARIANTS)


@each_family
@of_every
@examples(25)
@given(st.data(), families.seeds, families.drawn_sizes(tokens=20))
def test_every_node_equals_the_recurrence_along_its_path(
    kind: str, family: Family, data: st.DataObject, seed: int, sizes: Sizes
) -> None:
    options = {"activation": seed % 2 == 0, "bias": seed % 3 > 0} if kind == "conv" else {}
    c = case(kind, seed, sizes, family, **options)
    parents = data.draw(trees.drawn_trees(sizes.b, sizes.t))
    ancestors, dead, before = tree.ancestors(parents), parents == tree.PADDING, each(np.copy, c.window)
    y = c.of(trees.poisoned(c.window, dead)).tree(ancestors)
    assert c.near(y, c.along(ancestors))
    assert not y[dead].any()
    assert families.same_bits(c.window, before)


@of_every
def test_a_tree_of_padding_alone_has_outputs_of_zero_in_their_shape(kind: str) -> None:
    """One row that rests: without a node nothing told the shape of an output."""
    c = case(kind, 3, Sizes(b=1, t=6))
    ancestors = tree.ancestors(np.full((1, 6), tree.PADDING))
    y = c.along(ancestors)
    assert y.shape == c.tree(ancestors).shape
    assert not y.any()


@pytest.mark.parametrize("width", [2, 3, 4, 5, 7])
def test_a_node_deeper_than_the_window_does_not_read_the_state(width: int) -> None:
    M, u, params = families.conv_case(1, Sizes(b=1, t=9, w=width))
    parents = parents_of("comb", 9)[None]
    shallow = tree.depths(parents)[0] < width - 1
    y = conv_tree.scan(np.full_like(M, np.nan), u, parents, params)[0]
    assert np.isnan(y[shallow]).all()
    assert np.isfinite(y[~shallow]).all()


@each_kind
@each_family
def test_a_whole_layer_equals_its_scan_along_each_path(kind: families.Kind, family: Family) -> None:
    layer, state, inputs = families.layer(kind, 3, Sizes(b=2, t=11, w=3), family)
    parents = packed([parents_of("random", 11, 4), parents_of("binary", 7)], 11)
    live = parents != tree.PADDING
    y, _ = mixer.verify_window(state, trees.poisoned(inputs, ~live), layer, live, parents)
    ref = tree_paths.scan(lambda s, i: mixer.scan(s, i, layer), state, inputs, tree.ancestors(parents))
    assert deviation(y, ref) <= ALL.get(kind, ALL["ssd"]).close


@of_every
def test_one_node_equals_one_step(kind: str) -> None:
    c = case(kind, 8, Sizes(t=1))
    y = c.tree(np.ones((2, 1, 1), dtype=bool))
    assert c.near(y[:, 0], c.recurrence.definition.step(c.S, c.token(0), c.params)[0])


@of_every
def test_a_chain_is_the_tree_with_one_path(kind: str) -> None:
    c = case(kind, 9, Sizes(t=9, w=3), "mamba")
    chain = packed([parents_of("chain", 9)] * 2, 9)
    assert c.near(c.tree(tree.ancestors(chain)), c.scan()[0])


def reordered(parents: Array, seed: int) -> Array:
    """Another topological order of a tree: order[i] is the old node at new place i."""
    rng, order = np.random.default_rng(seed), [0]
    while len(order) < len(parents):
        ready = [i for i in range(len(parents)) if i not in order and parents[i] in order]
        order.append(int(rng.choice(ready)))
    return np.array(order)


@of_every
@pytest.mark.parametrize("shape", ["star", "comb", "binary", "random"])
def test_siblings_may_stand_in_any_order(kind: str, shape: str) -> None:
    c = case(kind, 10, Sizes(b=1, t=10))
    parents = parents_of(shape, 10, 3)
    order = reordered(parents, 5)
    assert order.tolist() != list(range(10))
    place = np.argsort(order)
    moved = np.where(parents[order] >= 0, place[parents[order]], -1)
    y = c.tree(tree.ancestors(parents[None]))
    assert c.near(c.of(along(c.window, order[None])).tree(tree.ancestors(moved[None])), y[:, order])


@of_every
def test_duplicate_siblings_and_their_children_have_the_same_outputs(kind: str) -> None:
    c = case(kind, 11, Sizes(b=1, t=6), "mamba")
    twins = along(c.window, np.array([[0, 1, 1, 3, 3, 5]]))  # 2 repeats 1, and 4 repeats 3
    y = c.of(twins).tree(tree.ancestors(np.array([[-1, 0, 0, 1, 2, 2]])))[0]
    assert c.near(y[2], y[1])
    assert c.near(y[4], y[3])
    assert deviation(y[5], y[4]) > 1e-6


@of_every
def test_a_longer_envelope_changes_nothing(kind: str) -> None:
    c = case(kind, 12, Sizes(b=2, t=9))
    short, long = (packed([parents_of("binary", 5), parents_of("comb", 3)], nodes) for nodes in (5, 9))
    y_long = c.tree(tree.ancestors(long))
    assert c.near(y_long[:, :5], c.of(prefix(c.window, 5)).tree(tree.ancestors(short)))
    assert not y_long[:, 5:].any()


@of_every
def test_a_row_alone_and_in_a_batch_of_other_trees_is_the_same(kind: str) -> None:
    c = case(kind, 13, Sizes(b=3, t=8))
    mask = tree.ancestors(packed([parents_of(shape, n) for shape, n in [("star", 8), ("binary", 7), ("comb", 6)]], 8))
    y = c.tree(mask)
    for b in range(3):
        alone = c.of(rows(c.window, np.array([b])))._replace(S=c.S[[b]])
        assert c.near(alone.tree(mask[[b]]), y[[b]])


@of_every
def test_bad_trees_and_arrays_are_refused(kind: str) -> None:
    c = case(kind, 14, Sizes(b=1, t=4))
    ancestors = tree.ancestors(parents_of("star", 4)[None])
    refused(NotTopological, "node 0 sees node 1", c.tree, ancestors | ancestors.transpose(0, 2, 1))
    refused(PrecisionError, "float64", c._replace(S=c.S.astype(np.float32)).tree, ancestors)
    refused(ShapeMismatch, "axis t has size", c.tree, ancestors[:, :3, :3])
    refused(
        NotTopological,
        "",
        conv_tree.scan,
        np.zeros((1, 2, 3)),
        np.zeros((1, 2, 2)),
        np.array([[-1, 1]]),
        conv.ConvParams(np.ones((2, 3))),
    )


# ------------------------------------------------------------------------------------------------------- planted faults


@of_every
def test_planted_lower_triangle_for_the_mask_is_caught(kind: str) -> None:
    c = case(kind, 20, Sizes(b=1, t=8))
    ref, leaky = c.along(tree.ancestors(TREE)), c.tree(np.tri(8, dtype=bool)[None])
    assert c.near(c.tree(tree.ancestors(TREE)), ref)
    assert deviation(leaky, ref) > 1e-6
    assert c.near(leaky[:, :2], ref[:, :2])  # up to the first sibling nothing shows


def masked_after(ancestors: Array, log_a: Array) -> tuple[Array, Array]:
    At = np.einsum("btj, bj... -> bt...", ancestors, log_a)
    with np.errstate(over="ignore", invalid="ignore"):
        seen = ancestors.reshape(ancestors.shape + (1,) * (log_a.ndim - 2))
        return np.exp(At), np.exp(At[:, :, None] - At[:, None]) * seen


def changed(state: Callable[[Array], Any], pairs: Callable[[Array], Any]) -> Any:
    """The right decays, those from the state and those of pairs times what a function of the log decays gives."""
    right = tree.decays

    def decays(ancestors: Array, log_a: Array) -> tuple[Array, Array]:
        from_state, between = right(ancestors, log_a)
        return from_state * state(log_a), between * pairs(log_a)

    return decays


DECAYS = {
    "mask after exp": (masked_after, "hard"),
    "a node decays its own input": (changed(lambda a: 1.0, lambda a: np.exp(a)[:, None]), "gentle"),
    "the state decays to the parent only": (changed(lambda a: np.exp(-a), lambda a: 1.0), "gentle"),
}


@pytest.mark.parametrize("fault", DECAYS)
@pytest.mark.parametrize("kind", BY_DECAYS)
def test_planted_decays_are_caught(kind: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, family = DECAYS[fault]
    c = case(kind, 21, Sizes(b=1, t=20), family)
    ancestors = tree.ancestors(parents_of("comb", 20)[None])
    ref = c.along(ancestors)
    assert c.near(c.tree(ancestors), ref)
    monkeypatch.setattr(tree, "decays", wrong)
    assert not deviation(c.tree(ancestors), ref) <= 1e-6
    assert fault != "mask after exp" or np.isnan(c.tree(ancestors)).any()


@of_every
def test_planted_child_under_an_equal_token_of_another_branch_is_caught(kind: str) -> None:
    c = case(kind, 24, Sizes(b=1, t=6))
    c = c.of(along(c.window, np.array([[0, 1, 2, 3, 3, 5]])))  # 3 under 1 and 4 under 2 hold the same token
    right, wrong = (tree.ancestors(np.array([[-1, 0, 0, 1, 2, parent]])) for parent in (4, 3))
    ref = c.along(right)
    assert c.near(c.tree(right), ref)
    assert deviation(c.tree(wrong), ref) > 1e-6
