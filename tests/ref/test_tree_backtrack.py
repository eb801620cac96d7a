"""Speculation with trees: what was accepted along a path equals plain decoding of it, window after window."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssmspec_ref import tree as trees_of
from ssmspec_ref.backtrack import Accepted, Draft, activation_replay, snapshots, tree
from ssmspec_ref.conv import tree as conv_tree
from ssmspec_ref.errors import AcceptanceError, EmptyWindow, LengthError, NotTopological, ShapeMismatch
from ssmspec_ref.layers import mixer
from ssmspec_ref.layers.mixer import Mixer, MixerInputs, MixerState
from ssmspec_ref.records import along, each, prefix, rows
from ssmspec_ref.shapes import Array, Parents
from ssmspec_ref.ssd import tree as ssd_tree
from tests import families, trees
from tests.families import KINDS, TOLERANCE, Kind, Sizes, deviation, same_bits
from tests.trees import packed, parents_of, path_to

PATHS = {"tree": tree, "activation_replay": activation_replay, "snapshots": snapshots}


def draw_window(
    layer: Mixer, kind: Kind, seed: int, rows_: int, nodes: int, parents: Parents, family: families.Family
) -> Draft:
    """A tree of inputs, with NaN at padding."""
    inputs = families.inputs(layer, seed, rows_, nodes, family, channel_gate=kind == "delta_channel")
    return Draft(trees.poisoned(inputs, parents == trees_of.PADDING), parents=parents)


def plain(state: MixerState, inputs: MixerInputs, accepted: Accepted, layer: Mixer) -> tuple[Array, MixerState]:
    """Plain decoding of the accepted tokens, one row after the other."""
    assert accepted.path is not None
    live = accepted.path >= 0
    return mixer.scan(state, each(np.nan_to_num, along(inputs, accepted.path)), layer, live)


def accept_to(parents: Parents, ends: list[int]) -> Accepted:
    """The paths to one node of each row; -1 accepts nothing."""
    path = np.full(parents.shape, -1)
    for b, end in enumerate(ends):
        if end >= 0:
            nodes = path_to(parents[b], end)
            path[b, : len(nodes)] = nodes
    return Accepted((path >= 0).sum(axis=1), path=path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, derandomize=True, max_examples=6)
@given(st.data(), families.seeds, families.drawn_sizes(tokens=9), st.sampled_from(families.FAMILIES))
def test_twelve_windows_of_trees_equal_plain_decoding(
    path: str, kind: Kind, data: st.DataObject, seed: int, sizes: Sizes, family: families.Family
) -> None:
    backtrack: Any = PATHS[path]
    layer, state, _ = families.layer(kind, seed, sizes, family)
    kept = backtrack.start(state)
    for turn in range(12):
        parents = data.draw(trees.drawn_trees(sizes.b, sizes.t))
        draft = draw_window(layer, kind, seed + turn, sizes.b, sizes.t, parents, family)
        accepted = accept_to(parents, [data.draw(st.integers(-1, size - 1)) for size in trees_of.sizes(parents)])
        y, pending = backtrack.verify(kept, draft, layer)
        y_ref, state = plain(state, draft.inputs, accepted, layer)
        assert accepted.path is not None
        on_path = np.where(
            (accepted.path >= 0).reshape(accepted.path.shape + (1,) * (y.ndim - 2)), along(y, accepted.path), 0
        )
        assert deviation(on_path, y_ref) <= TOLERANCE
        kept = backtrack.commit(pending, accepted, layer)
        assert deviation(backtrack.restore(kept, layer), state) <= TOLERANCE
    assert not backtrack.refeed(kept).any()


@pytest.mark.parametrize("kind", KINDS)
def test_verification_writes_no_state_and_a_row_that_rests_keeps_its_bits(kind: Kind) -> None:
    layer, state, _ = families.layer(kind, 2, Sizes(b=3, t=7))
    before = each(np.copy, state)
    parents = packed([parents_of("binary", 7), parents_of("star", 5), parents_of("comb", 6)], 7)
    kept = tree.start(state)
    _, pending = tree.verify(kept, draw_window(layer, kind, 3, 3, 7, parents, "gentle"), layer)
    after = tree.commit(pending, accept_to(parents, [5, -1, 0]), layer)
    assert same_bits(kept, before)
    assert same_bits(rows(after, np.array([1])), rows(before, np.array([1])))
    assert not same_bits(rows(after, np.array([2])), rows(before, np.array([2])))


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_along_a_path_is_the_commit_of_a_chain(kind: Kind) -> None:
    layer, state, inputs = families.layer(kind, 4, Sizes(b=2, t=8))
    parents = packed([np.array([-1, 0, 0, 1, 2, 2, 4, 3])] * 2, 8)
    accepted = accept_to(parents, [6, 7])
    assert accepted.path is not None
    _, pending = tree.verify(tree.start(state), Draft(inputs, parents=parents), layer)
    chain = prefix(along(inputs, accepted.path), 4)
    _, chain_pending = tree.verify(tree.start(state), Draft(chain), layer)
    assert accepted.advanced.tolist() == [4, 4]
    chain_kept = tree.commit(chain_pending, Accepted(np.array([4, 4])), layer)
    assert deviation(tree.commit(pending, accepted, layer), chain_kept) <= TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_without_parents_is_the_tree_with_one_path(kind: Kind) -> None:
    layer, state, inputs = families.layer(kind, 5, Sizes(b=3, t=6))
    lengths, advanced = np.array([6, 3, 0]), np.array([2, 3, 0])
    y, pending = tree.verify(tree.start(state), Draft(inputs, lengths), layer)
    y_ref, ref = activation_replay.verify(activation_replay.start(state), Draft(inputs, lengths), layer)
    assert deviation(y, y_ref) <= TOLERANCE
    kept = tree.commit(pending, Accepted(advanced), layer)
    replayed = activation_replay.restore(activation_replay.commit(ref, Accepted(advanced), layer), layer)
    assert deviation(kept, replayed) <= TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_padding_takes_no_part(kind: Kind) -> None:
    layer, state, _ = families.layer(kind, 5, Sizes(b=2, t=4))
    parents = packed([parents_of("star", 0), parents_of("binary", 4)], 4)
    y, pending = tree.verify(state, draw_window(layer, kind, 6, 2, 4, parents, "gentle"), layer)
    kept = tree.commit(pending, accept_to(parents, [-1, 3]), layer)
    assert not y[0].any()
    assert same_bits(rows(kept, np.array([0])), rows(state, np.array([0])))


@pytest.mark.parametrize("kind", KINDS)
def test_a_path_may_be_narrower_than_the_window(kind: Kind) -> None:
    layer, state, inputs = families.layer(kind, 6, Sizes(b=1, t=5))
    parents = parents_of("star", 5)[None]
    _, pending = tree.verify(tree.start(state), Draft(inputs, parents=parents), layer)
    narrow = tree.commit(pending, Accepted(np.array([2]), path=np.array([[0, 3]])), layer)
    assert same_bits(narrow, tree.commit(pending, accept_to(parents, [3]), layer))


TREE = [-1, 0, 0, 1, 2, -2]


@pytest.mark.parametrize(
    ("advanced", "path", "words"),
    [
        (2, [0, 3], "each the parent of the next"),  # skips node 1
        (3, [0, 1, 4], "each the parent of the next"),  # jumps to the branch of node 2
        (3, [0, 1, 1], "each the parent of the next"),  # repeats
        (2, [1, 3], "root first"),  # begins below the root
        (3, [0, 3, 1], "each the parent of the next"),  # out of order
        (2, [0, 5], "each the parent of the next"),  # padding
        (2, [0, 9], "list that many nodes"),  # no node
        (2, [0, 1, 3], "list that many nodes"),  # longer than advanced
        (2, [0, -1, 1], "list that many nodes"),  # a gap
        (6, [0, 1, 3], "give 0 to 5"),  # more than the tree holds
        (-1, [-1], "give 0 to 5"),
    ],
)
@pytest.mark.parametrize("name", PATHS)
def test_a_path_that_is_none_of_the_tree_is_refused(name: str, advanced: int, path: list[int], words: str) -> None:
    backtrack: Any = PATHS[name]
    layer, state, inputs = families.layer("ssd", 7, Sizes(b=1, t=6))
    _, pending = backtrack.verify(backtrack.start(state), Draft(inputs, parents=np.array([TREE])), layer)
    with pytest.raises(AcceptanceError, match=words):
        backtrack.commit(pending, Accepted(np.array([advanced]), path=np.array([path])), layer)


def test_a_tree_needs_its_path_where_its_first_nodes_are_none() -> None:
    layer, state, inputs = families.layer("ssd", 7, Sizes(b=1, t=6))
    _, pending = tree.verify(tree.start(state), Draft(inputs, parents=np.array([TREE])), layer)
    tree.commit(pending, Accepted(np.array([2])), layer)
    with pytest.raises(AcceptanceError, match="each the parent of the next"):
        tree.commit(pending, Accepted(np.array([3])), layer)


def test_bad_windows_are_refused_and_nothing_is_written() -> None:
    layer, state, inputs = families.layer("delta", 8, Sizes(b=2, t=4))
    before = each(np.copy, state)
    with pytest.raises(NotTopological, match="row 1: node 2 has parent 3"):
        tree.verify(state, Draft(inputs, parents=np.array([[-1, 0, 0, 0], [-1, 0, 3, 0]])), layer)
    with pytest.raises(LengthError, match="the window holds 4"):
        tree.verify(state, Draft(inputs, np.array([5, 1])), layer)
    with pytest.raises(ShapeMismatch, match="the sequence of each row"):
        tree.verify(rows(state, np.array([0])), Draft(inputs), layer)
    with pytest.raises(EmptyWindow, match="a window needs at least its root"):
        Draft(prefix(inputs, 0))
    assert same_bits(state, before)


# ------------------------------------------------------------------------------------------------------- planted faults


def one_window(kind: Kind) -> tuple[Mixer, MixerState, Draft, Accepted, MixerState]:
    """A tree, the path 0, 2, 4, and the state that plain decoding of it leaves."""
    layer, state, _ = families.layer(kind, 9, Sizes(b=1, t=6))
    parents = np.array([TREE])
    draft = draw_window(layer, kind, 10, 1, 6, parents, "gentle")
    accepted = accept_to(parents, [4])
    return layer, state, draft, accepted, plain(state, draft.inputs, accepted, layer)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_planted_commit_of_the_first_rows_is_caught(kind: Kind) -> None:
    layer, state, draft, accepted, ref = one_window(kind)
    _, pending = tree.verify(state, draft, layer)
    assert deviation(tree.commit(pending, accepted, layer), ref) <= TOLERANCE
    as_rows = replace(pending, draft=Draft(draft.inputs))  # a chain: rows 0, 1, 2
    assert deviation(tree.commit(as_rows, Accepted(accepted.advanced), layer), ref) > 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_planted_commit_of_a_sibling_is_caught(kind: Kind) -> None:
    layer, state, draft, accepted, ref = one_window(kind)
    _, pending = tree.verify(state, draft, layer)
    sibling = accept_to(np.array([TREE]), [3])
    assert sibling.advanced == accepted.advanced
    assert deviation(tree.commit(pending, sibling, layer), ref) > 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_planted_commit_of_every_node_is_caught(kind: Kind) -> None:
    layer, state, draft, _, ref = one_window(kind)
    _, after = mixer.scan(state, each(np.nan_to_num, draft.inputs), layer)
    assert deviation(after, ref) > 1e-6


def test_planted_window_by_row_order_in_a_layer_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, state, draft, accepted, _ = one_window("ssd")
    assert accepted.path is not None
    y_ref, _ = plain(state, draft.inputs, accepted, layer)
    right = conv_tree.scan_ancestors

    def by_row(M: Array, u: Array, ancestors: Array, params: Any) -> Array:
        live = trees_of.live(ancestors)
        return right(M, u, np.tri(u.shape[1], dtype=bool) & live[:, :, None] & live[:, None], params)

    monkeypatch.setattr(conv_tree, "scan_ancestors", by_row)
    y, _ = tree.verify(state, draft, layer)
    assert deviation(along(y, accepted.path)[:, :3], y_ref[:, :3]) > 1e-6


def test_planted_padding_that_is_read_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, state, draft, _, _ = one_window("ssd")
    y, _ = tree.verify(state, draft, layer)
    assert np.isfinite(y).all()
    monkeypatch.setattr(ssd_tree, "masked", lambda window, live: window)
    with np.errstate(invalid="ignore"):
        y, _ = tree.verify(state, draft, layer)
    assert np.isnan(y).any()
