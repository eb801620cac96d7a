"""Speculation with trees: what was accepted along a path equals plain decoding of it, window after window."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref import tree as trees_of
from ssmspec_ref.backtrack import Accepted, Draft, tree
from ssmspec_ref.conv import tree as conv_tree
from ssmspec_ref.errors import AcceptanceError, EmptyWindow, LengthError, NotTopological, ShapeMismatch
from ssmspec_ref.layers import mixer
from ssmspec_ref.layers.mixer import Mixer, MixerInputs, MixerState
from ssmspec_ref.records import along, each, prefix, rows
from ssmspec_ref.shapes import Array, Parents
from ssmspec_ref.ssd import tree as ssd_tree
from tests import families, trees
from tests.families import TOLERANCE, Family, Kind, Sizes, deviation, each_kind, examples, same_bits
from tests.speculation import PATHS, each_tree_path
from tests.trees import packed, parents_of, path_to

from .refusals import refused


def draw_window(layer: Mixer, kind: Kind, seed: int, parents: Parents, family: Family = "gentle") -> Draft:
    """A tree of inputs, with NaN at padding."""
    inputs = families.tokens(kind, layer, seed, *parents.shape, family)
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


@each_tree_path
@each_kind
@examples(6)
@given(st.data(), families.seeds, families.drawn_sizes(tokens=9), st.sampled_from(families.FAMILIES))
def test_twelve_windows_of_trees_equal_plain_decoding(
    path: str, kind: Kind, data: st.DataObject, seed: int, sizes: Sizes, family: Family
) -> None:
    backtrack = PATHS[path]
    layer, state, _ = families.layer(kind, seed, sizes, family)
    kept = backtrack.start(state)
    for turn in range(12):
        parents = data.draw(trees.drawn_trees(sizes.b, sizes.t))
        draft = draw_window(layer, kind, seed + turn, parents, family)
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


@each_tree_path
@each_kind
def test_verification_writes_no_state_and_a_row_that_rests_or_is_padding_keeps_its_bits(kind: Kind, path: str) -> None:
    layer, state, _ = families.layer(kind, 2, Sizes(b=4, t=7))
    before = each(np.copy, state)
    parents = packed([parents_of(shape, n) for shape, n in [("binary", 7), ("star", 5), ("comb", 6), ("star", 0)]], 7)
    y, pending = PATHS[path].verify(PATHS[path].start(state), draw_window(layer, kind, 3, parents), layer)
    kept = PATHS[path].commit(pending, accept_to(parents, [5, -1, 0, -1]), layer)
    after = PATHS[path].restore(kept, layer)
    assert same_bits(state, before)
    assert [same_bits(rows(after, np.array([b])), rows(before, np.array([b]))) for b in range(4)] == [
        False,
        True,
        False,
        True,
    ]
    assert not y[3].any()


@each_kind
def test_a_path_may_be_narrower_than_the_window(kind: Kind) -> None:
    layer, state, inputs = families.layer(kind, 6, Sizes(b=1, t=5))
    parents = parents_of("star", 5)[None]
    _, pending = tree.verify(tree.start(state), Draft(inputs, parents=parents), layer)
    narrow = tree.commit(pending, Accepted(np.array([2]), path=np.array([[0, 3]])), layer)
    assert same_bits(narrow, tree.commit(pending, accept_to(parents, [3]), layer))


TREE = [-1, 0, 0, 1, 2, -2]


@pytest.mark.parametrize(
    ("advanced", "nodes", "words"),
    [
        (2, [0, 3], "each the parent of the next"),  # skips node 1
        (3, [0, 1, 4], "each the parent of the next"),  # jumps to the branch of node 2
        (3, [0, 1, 1], "each the parent of the next"),  # repeats
        (2, [1, 3], "root first"),  # begins below the root
        (1, [1, -1], "root first"),
        (3, [0, 3, 1], "each the parent of the next"),  # out of order
        (3, [3, 1, 0], "root first"),  # backwards
        (2, [0, 5], "each the parent of the next"),  # padding
        (2, [0, 9], "list that many nodes"),  # no node
        (2, [0, 1, 3], "list that many nodes"),  # longer than advanced
        (2, [0, -1, 1], "list that many nodes"),  # a gap
        (1, [-1, -1], "list that many nodes"),  # none
        (6, [0, 1, 3], "give 0 to 5"),  # more than the tree holds
        (-1, [-1], "give 0 to 5"),
        (3, None, "each the parent of the next"),  # the first nodes, which are no path
    ],
)
@each_tree_path
def test_a_path_that_is_none_of_the_tree_is_refused(path: str, advanced: int, nodes: Any, words: str) -> None:
    layer, state, inputs = families.layer("ssd", 7, Sizes(b=1, t=6))
    _, pending = PATHS[path].verify(PATHS[path].start(state), Draft(inputs, parents=np.array([TREE])), layer)
    accepted = Accepted(np.array([advanced]), path=None if nodes is None else np.array([nodes]))
    refused(AcceptanceError, words, PATHS[path].commit, pending, accepted, layer)
    PATHS[path].commit(pending, Accepted(np.array([2])), layer)  # without a path, the first nodes where they are one


def test_bad_windows_are_refused_and_nothing_is_written() -> None:
    layer, state, inputs = families.layer("delta", 8, Sizes(b=2, t=4))
    refused(
        NotTopological,
        "row 1: node 2 has parent 3",
        tree.verify,
        state,
        Draft(inputs, parents=np.array([[-1, 0, 0, 0], [-1, 0, 3, 0]])),
        layer,
    )
    refused(LengthError, "the window holds 4", tree.verify, state, Draft(inputs, np.array([5, 1])), layer)
    refused(ShapeMismatch, "the sequence of each row", tree.verify, rows(state, np.array([0])), Draft(inputs), layer)
    refused(EmptyWindow, "a window needs at least its root", prefix, inputs, 0)


# ------------------------------------------------------------------------------------------------------- planted faults


def one_window(kind: Kind) -> tuple[Mixer, MixerState, Draft, Accepted]:
    """A tree, and the path 0, 2, 4."""
    layer, state, _ = families.layer(kind, 9, Sizes(b=1, t=6))
    parents = np.array([TREE])
    return layer, state, draw_window(layer, kind, 10, parents), accept_to(parents, [4])


COMMITS: dict[str, Callable[..., MixerState]] = {
    "right": lambda pending, accepted, layer: tree.commit(pending, accepted, layer),
    "the first rows": lambda pending, accepted, layer: tree.commit(  # a chain: rows 0, 1, 2
        replace(pending, draft=Draft(pending.draft.inputs)), Accepted(accepted.advanced), layer
    ),
    "a sibling": lambda pending, accepted, layer: tree.commit(pending, accept_to(np.array([TREE]), [3]), layer),
    "every node": lambda pending, accepted, layer: mixer.scan(pending.kept, each(np.nan_to_num, pending.draft.inputs), layer)[
        1
    ],
}


@pytest.mark.parametrize("fault", COMMITS)
@each_kind
def test_planted_commits_are_caught(kind: Kind, fault: str) -> None:
    layer, state, draft, accepted = one_window(kind)
    _, pending = tree.verify(state, draft, layer)
    wrong = deviation(COMMITS[fault](pending, accepted, layer), plain(state, draft.inputs, accepted, layer)[1])
    assert wrong <= TOLERANCE if fault == "right" else wrong > 1e-6


def test_planted_window_by_row_order_in_a_layer_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, state, draft, accepted = one_window("ssd")
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
    layer, state, draft, _ = one_window("ssd")
    y, _ = tree.verify(state, draft, layer)
    assert np.isfinite(y).all()
    monkeypatch.setattr(ssd_tree, "masked", lambda window, live: window)
    with np.errstate(invalid="ignore"):
        y, _ = tree.verify(state, draft, layer)
    assert np.isnan(y).any()
