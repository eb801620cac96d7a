"""Attention over a cache, for windows and trees, against causal attention over whole sequences."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref import attention, tree
from ssmspec_ref.attention import AttentionParams, AttentionWindow, KVState
from ssmspec_ref.attention import dense as attention_dense
from ssmspec_ref.backtrack import Accepted, kv_cache
from ssmspec_ref.backtrack.kv_cache import AttentionDraft
from ssmspec_ref.errors import (
    AcceptanceError,
    LengthError,
    NotNested,
    NotTopological,
    ParameterError,
    PrecisionError,
    ShapeMismatch,
)
from ssmspec_ref.layers import rotary
from ssmspec_ref.records import along, concat, each, prefix, rows
from ssmspec_ref.shapes import Array
from ssmspec_ref.tree import paths as tree_paths
from tests import trees
from tests.families import TOLERANCE, deviation, examples, same_bits, seeds
from tests.trees import packed, parents_of, path_to

from .refusals import refused

PARENTS = np.array([[-1, 0, 0, 1, 2, 2, 4, 3], [-1, 0, 1, 0, 3, -2, -2, -2]])
HEADS, GROUPS, CHANNELS = 6, 3, 7


def params(turned: int = 4, scale: float | None = None) -> AttentionParams:
    """Partial rotary, with high frequencies, so that a position off by one is seen."""
    return AttentionParams(scale, rotary.frequencies(turned, 50.0) if turned else None)


def tokens(seed: int, rows_: int, count: int, heads: int = HEADS, groups: int = GROUPS) -> AttentionWindow:
    rng = np.random.default_rng(seed)
    q, kv = rng.normal(size=(rows_, count, heads, CHANNELS)), rng.normal(size=(2, rows_, count, groups, CHANNELS))
    return AttentionWindow(q, kv[0], kv[1])


def cached(past: AttentionWindow, lengths: Array, layer: AttentionParams) -> KVState:
    """The cache after the first `lengths` tokens of each row."""
    count, groups = past.q.shape[1], past.k.shape[2]
    state = attention.new_state(len(lengths), groups, CHANNELS)
    return attention.scan(state, past, layer, np.arange(count) < lengths[:, None])[1]


def poisoned(state: KVState, slots: int) -> KVState:
    """The cache with `slots` more slots, and NaN behind its length."""
    K, V = (np.pad(cache, ((0, 0), (0, slots), (0, 0), (0, 0))) for cache in (state.K, state.V))
    dead = (np.arange(K.shape[1]) >= state.length[:, None])[..., None, None]
    return KVState(np.where(dead, np.nan, K), np.where(dead, np.nan, V), state.length)


def dense(past: AttentionWindow, lengths: Array, window: AttentionWindow, mask: Array, layer: AttentionParams) -> Array:
    """Every node as the end of one whole sequence: committed tokens, then its path."""
    outputs = []
    for b, length in enumerate(lengths):
        context = None if length == 0 else prefix(rows(past, np.array([b])), int(length))

        def run(_: Array, path: AttentionWindow, context: AttentionWindow | None = context) -> tuple[Array, None]:
            return attention_dense.scan(path if context is None else concat(context, path), layer), None

        outputs.append(tree_paths.scan(run, np.zeros((1, 1)), rows(window, np.array([b])), mask[b : b + 1]))
    return np.concatenate(outputs)


def example(seed: int = 1, layer: AttentionParams | None = None) -> tuple[KVState, AttentionWindow, Array, Array]:
    """A cache of 5 and 3 tokens, a window of two trees with NaN at padding, the mask, and the outputs it must have."""
    layer = params() if layer is None else layer
    past, lengths, mask = tokens(seed, 2, 5), np.array([5, 3]), tree.ancestors(PARENTS)
    window = tokens(seed + 1, 2, 8)
    ref = dense(past, lengths, window, mask, layer)
    return cached(past, lengths, layer), trees.poisoned(window, PARENTS == tree.PADDING), mask, ref


# ----------------------------------------------------------------------------------------------------------------- laws


@examples(40)
@given(st.data(), seeds, st.integers(1, 3), st.integers(1, 3), st.sampled_from([0, 2, 6]), st.sampled_from([None, 0.3]))
def test_every_node_equals_dense_attention_over_its_sequence(
    data: st.DataObject, seed: int, groups: int, each_: int, turned: int, scale: float | None
) -> None:
    rows_, past_tokens, nodes = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6)), data.draw(st.integers(1, 12))
    lengths = np.array(data.draw(st.lists(st.integers(0, past_tokens), min_size=rows_, max_size=rows_)))
    parents = data.draw(trees.drawn_trees(rows_, nodes))
    layer, mask = params(turned, scale), tree.ancestors(parents)
    past, window = (tokens(seed + i, rows_, n, groups * each_, groups) for i, n in enumerate((past_tokens, nodes)))
    state = poisoned(cached(past, lengths, layer), data.draw(st.integers(0, nodes)))
    before = each(np.copy, state)
    dead = parents == tree.PADDING
    y, appended = attention.verify(state, trees.poisoned(window, dead), mask, layer)
    assert deviation(y, dense(past, lengths, window, mask, layer)) <= TOLERANCE
    assert not y[dead].any()
    assert same_bits(state, before)
    assert np.array_equal(appended.length, lengths)


@examples(25)
@given(seeds, st.integers(1, 3), st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_any_split_of_a_sequence_equals_dense_attention(seed: int, rows_: int, windows: list[int]) -> None:
    layer, whole = params(), tokens(seed, rows_, sum(windows))
    state, outputs = attention.new_state(rows_, GROUPS, CHANNELS), []
    for start, count in zip(np.cumsum([0, *windows]), windows, strict=False):
        y, state = attention.scan(state, along(whole, np.tile(np.arange(start, start + count), (rows_, 1))), layer)
        outputs.append(y)
    assert deviation(np.concatenate(outputs, axis=1), attention_dense.scan(whole, layer)) <= TOLERANCE
    assert state.length.tolist() == [sum(windows)] * rows_


def test_a_token_that_is_not_live_takes_no_slot_and_no_position() -> None:
    layer, window = params(), tokens(2, 2, 6)
    live = np.array([[True, False, True, True, False, True], [False, False, True, False, False, False]])
    y, state = attention.scan(attention.new_state(2, GROUPS, CHANNELS), trees.poisoned(window, ~live), layer, live)
    for b in range(2):
        real = np.flatnonzero(live[b])
        alone = along(rows(window, np.array([b])), real[None])
        assert deviation(y[b : b + 1, real], attention_dense.scan(alone, layer)) <= TOLERANCE
    assert not y[~live].any()
    assert state.length.tolist() == [4, 1]


def test_a_chain_is_the_tree_with_one_path() -> None:
    past, window, layer = tokens(3, 2, 4), tokens(4, 2, 6), params()
    state = cached(past, np.array([4, 2]), layer)
    chain = tree.ancestors(packed([parents_of("chain", 6)] * 2, 6))
    y, _ = attention.verify(state, window, chain, layer)
    assert deviation(y, attention.scan(state, window, layer)[0]) <= TOLERANCE


def test_siblings_may_stand_in_any_order_and_duplicates_are_equal() -> None:
    state, window, _, _ = example(5)
    state, one = rows(state, np.array([0])), rows(window, np.array([0]))
    layer = params()
    parents, moved = np.array([[-1, 0, 0, 1, 2]]), np.array([[-1, 0, 1, 0, 3]])
    order = np.array([[0, 2, 4, 1, 3]])
    y, _ = attention.verify(state, prefix(one, 5), tree.ancestors(parents), layer)
    y_moved, _ = attention.verify(state, along(one, order), tree.ancestors(moved), layer)
    assert deviation(y_moved, along(y, order)) <= TOLERANCE
    twins, _ = attention.verify(state, along(one, np.array([[0, 1, 1, 3, 3]])), tree.ancestors(parents), layer)
    assert deviation(twins[:, 2::2], twins[:, 1::2]) <= TOLERANCE


def test_a_key_that_was_moved_stands_at_its_position() -> None:
    """Compaction turns nothing again: the moved key is the one that plain decoding would have written."""
    state, window, mask, _ = example(6)
    layer, path = params(), np.array([[0, 2, 4, 6], [0, 3, -1, -1]])
    _, appended = attention.verify(state, window, mask, layer)
    accepted = attention.trim(attention.compact(appended, path))
    _, ref = attention.scan(state, each(np.nan_to_num, along(window, path)), layer, path >= 0)
    assert accepted.length.tolist() == [9, 5]
    assert same_bits(accepted, ref)


@examples(12)
@given(st.data(), seeds, st.integers(1, 3), st.integers(1, 8))
def test_twelve_windows_of_trees_equal_plain_decoding(data: st.DataObject, seed: int, rows_: int, nodes: int) -> None:
    layer = params()
    past = tokens(seed, rows_, 3)
    plain = cached(past, np.array([3, 0, 2])[:rows_], layer)
    kept = kv_cache.start(poisoned(plain, 5))
    for turn in range(12):
        parents = data.draw(trees.drawn_trees(rows_, nodes))
        window = tokens(seed + turn + 1, rows_, nodes)
        path = np.full((rows_, nodes), -1)
        for b, size in enumerate(tree.sizes(parents)):
            end = data.draw(st.integers(-1, size - 1))
            nodes_of = path_to(parents[b], end) if end >= 0 else []
            path[b, : len(nodes_of)] = nodes_of
        draft = AttentionDraft(trees.poisoned(window, parents == tree.PADDING), parents=parents)
        y, pending = kv_cache.verify(kept, draft, layer)
        y_ref, plain = attention.scan(plain, along(window, path), layer, path >= 0)
        assert deviation(np.where((path >= 0)[..., None, None], along(y, path), 0.0), y_ref) <= TOLERANCE
        kept = kv_cache.commit(pending, Accepted((path >= 0).sum(axis=1), path=path), layer)
        assert deviation(kv_cache.restore(kept, layer), plain) <= TOLERANCE
    assert not kv_cache.refeed(kept).any()


def test_several_drafts_of_a_sequence_leave_the_one_that_was_accepted() -> None:
    layer, past = params(), tokens(7, 2, 4)
    state, window = cached(past, np.array([4, 3]), layer), tokens(8, 4, 3)
    draft = AttentionDraft(window, np.array([3, 2, 3, 1]), sequence=np.array([0, 1, 0, 1]))
    _, pending = kv_cache.verify(state, draft, layer)
    kept = kv_cache.commit(pending, Accepted(np.array([3, 0]), row=np.array([2, 0])), layer)
    _, ref = attention.scan(state, rows(window, np.array([2, 1])), layer, np.array([[True] * 3, [False] * 3]))
    assert deviation(kept, ref) <= TOLERANCE
    refused(AcceptanceError, "row 1", kv_cache.commit, pending, Accepted(np.array([1, 1]), row=np.array([1, 1])), layer)


def test_a_window_that_brings_committed_tokens_again_changes_nothing() -> None:
    """Joint attainment: the recurrent layers lag, so that the window begins with what the cache holds already."""
    layer, past = params(), tokens(9, 2, 5)
    state, lag, fresh = cached(past, np.array([5, 4]), layer), np.array([2, 1]), tokens(10, 2, 4)
    index = np.array([[3, 4, 5, 6, 7, 8], [3, 5, 6, 7, 8, 8]])  # of [past | fresh]: what is brought again, root, drafts
    window = along(concat(past, fresh), index)
    draft = AttentionDraft(window, np.array([6, 5]))
    y, pending = kv_cache.verify(state, draft, layer, lag)
    ref, after = attention.scan(state, fresh, layer, np.array([[True, True, False, False], [True, True, True, False]]))
    assert deviation(y[0, 2:4], ref[0, :2]) <= TOLERANCE
    assert deviation(y[1, 1:4], ref[1, :3]) <= TOLERANCE
    assert deviation(y[0, 1], attention_dense.scan(prefix(past, 5), layer)[0, 4]) <= TOLERANCE
    assert deviation(kv_cache.commit(pending, Accepted(np.array([2, 3])), layer), after) <= TOLERANCE
    rest = kv_cache.commit(pending, Accepted(np.array([0, 3])), layer)
    assert same_bits(rows(rest, np.array([0])).K[:, :5], state.K[:1, :5])
    assert rest.length.tolist() == [5, 7]


def test_descending_moves_in_place_are_wrong_and_ascending_ones_are_right() -> None:
    state, window, mask, _ = example(11)
    _, appended = attention.verify(state, window, mask, params())
    path = [0, 2, 4, 6]
    ref = attention.compact(appended, np.array([path, [0, -1, -1, -1]])).K[0]

    def in_place(ranks: list[int]) -> Array:
        K = appended.K[0].copy()
        for m in ranks:
            K[5 + m] = K[5 + path[m]]
        return K

    assert same_bits(in_place([0, 1, 2, 3])[:9], ref[:9])
    assert not deviation(in_place([3, 2, 1, 0])[:9], ref[:9]) <= 1e-3


def test_rejected_slots_are_never_read() -> None:
    state, window, mask, ref = example(12)
    y, appended = attention.verify(poisoned(state, 12), window, mask, params())
    assert deviation(y, ref) <= TOLERANCE
    kept = attention.compact(appended, np.array([[0, 2], [0, 1]]))
    fresh = tokens(13, 2, 3)
    assert np.isnan(kept.K[:, 13:]).any()
    again, _ = attention.scan(poisoned(kept, 0), fresh, params())
    assert deviation(again, attention.scan(attention.trim(kept), fresh, params())[0]) <= TOLERANCE


@pytest.mark.parametrize("channels", [0, 2, 6])
def test_rotation_keeps_norms_and_sees_only_distances(channels: int) -> None:
    rng = np.random.default_rng(14)
    q, k, f = rng.normal(size=(1, 1, 1, 7)), rng.normal(size=(1, 1, 1, 7)), rotary.frequencies(channels, 100.0)
    at = [rotary.rotate(q, np.array([[i]]), f) for i in (0, 3, 13)]
    keys = [rotary.rotate(k, np.array([[i]]), f) for i in (0, 3, 13)]
    assert np.array_equal(at[0], q)
    assert abs(np.sum(at[2] * keys[1]) - np.sum(rotary.rotate(q, np.array([[10]]), f) * keys[0])) <= 1e-13
    assert np.max(np.abs(np.linalg.norm(at[1]) - np.linalg.norm(q))) <= 1e-14
    assert np.array_equal(at[2][..., channels:], q[..., channels:])


def test_frequencies_are_those_of_the_paper() -> None:
    assert np.max(np.abs(rotary.frequencies(4, 10000.0) - np.array([1.0, 0.01]))) <= 1e-16


# --------------------------------------------------------------------------------------------------------------- errors


def test_wrong_arguments_are_refused() -> None:
    state, window, mask, _ = example(15)
    refused(PrecisionError, "float64", AttentionWindow, window.q.astype(np.float32), window.k, window.v)
    refused(ShapeMismatch, "", AttentionWindow, window.q, window.k[:, :3], window.v)
    refused(LengthError, "give 0 to 5", KVState, state.K, state.V, np.array([6, 0]))
    refused(ParameterError, "must be > 0", AttentionParams, scale=-1.0)
    refused(ParameterError, "must be > 0", AttentionParams, scale=float("nan"))
    refused(ParameterError, "do not divide", attention.read, window.q[:, :, :5], state, mask, params())
    refused(ParameterError, "give at most 3", attention.verify, state, window, mask, AttentionParams(None, np.ones(4)))
    refused(ParameterError, "even number", rotary.frequencies, 3)
    refused(NotTopological, "", attention.verify, state, window, ~mask, params())
    gap = np.tile(np.tri(8, dtype=bool), (2, 1, 1))
    gap[:, 2, 0] = False
    refused(NotNested, "", attention.verify, state, window, gap, params())


@pytest.mark.parametrize("path", [[0, 2, 1], [0, 0, -1], [0, -1, 2], [0, 10, -1]])
def test_a_path_that_does_not_ascend_is_refused(path: list[int]) -> None:
    state, window, mask, _ = example(16)
    _, appended = attention.verify(state, window, mask, params())
    refused(AcceptanceError, "list ascending nodes", attention.compact, appended, np.array([[0, 1, 3], path]))


# ------------------------------------------------------------------------------------------------------- planted faults


def by_row_order(q: Array, state: KVState, ancestors: Array, layer: AttentionParams, right: Any = attention.read) -> Array:
    live = tree.live(ancestors)
    return right(q, state, np.tri(q.shape[1], dtype=bool) & live[:, :, None] & live[:, None], layer)


REPLACED: dict[str, tuple[str, Callable[..., Any]]] = {
    "position by index": ("positions", lambda length, mask: length[:, None] + np.arange(mask.shape[1])),
    "depth counted from one": ("positions", lambda length, mask: length[:, None] + mask.sum(axis=2)),
    "lower triangle for the mask": ("read", by_row_order),
    "group by remainder": ("repeat", lambda a, each_, axis: np.concatenate([a] * each_, axis=axis)),
}


@pytest.mark.parametrize("fault", REPLACED)
def test_planted_faults_are_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state, window, mask, ref = example(20)
    assert deviation(attention.verify(state, window, mask, params())[0], ref) <= TOLERANCE
    monkeypatch.setattr(attention, *REPLACED[fault])
    assert deviation(attention.verify(state, window, mask, params())[0], ref) > 1e-3


def test_planted_weight_of_zero_over_dead_slots_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead slots masked by a weight of 0 instead of being left out: 0 times NaN is NaN."""

    def read(q: Array, state: KVState, ancestors: Array, layer: AttentionParams) -> Array:
        slots, each_ = state.K.shape[1], q.shape[2] // state.K.shape[2]
        seen = np.repeat((np.arange(slots) < state.length[:, None])[:, None], q.shape[1], axis=1)
        for b, T in enumerate(state.length):
            seen[b, :, T : T + q.shape[1]] |= ancestors[b]
        K, V = np.repeat(state.K, each_, axis=2), np.repeat(state.V, each_, axis=2)
        s = np.einsum("bthe, blhe -> bhtl", np.nan_to_num(q), K) * CHANNELS**-0.5
        w = np.exp(np.where(seen[:, None], s, -1e30))
        return np.einsum("bhtl, blhe -> bthe", w / w.sum(axis=3, keepdims=True), V)

    state, window, mask, ref = example(22)
    live = (PARENTS != tree.PADDING)[..., None, None]
    monkeypatch.setattr(attention, "read", read)
    y, _ = attention.verify(state, window, mask, params())
    assert deviation(np.where(live, y, 0.0), ref) <= TOLERANCE  # nothing shows while dead slots hold zeros
    y, _ = attention.verify(poisoned(state, 12), window, mask, params())
    assert np.isnan(y).any()


def test_planted_compaction_of_the_first_rows_is_caught() -> None:
    state, window, mask, _ = example(23)
    _, appended = attention.verify(state, window, mask, params())
    right = attention.trim(attention.compact(appended, np.array([[0, 2, 4], [0, 3, -1]])))
    first_rows = attention.trim(attention.compact(appended, np.array([[0, 1, 2], [0, 1, -1]])))
    assert np.array_equal(right.length, first_rows.length)
    assert deviation(first_rows, right) > 1e-3


def test_planted_length_of_the_whole_window_is_caught() -> None:
    state, window, _, _ = example(24)
    layer, accepted = params(), np.array([2, 1])
    draft = AttentionDraft(each(np.nan_to_num, window))
    _, pending = kv_cache.verify(state, draft, layer)
    right = kv_cache.commit(pending, Accepted(accepted), layer)
    whole = KVState(pending.appended.K, pending.appended.V, state.length + 8)
    fresh = tokens(25, 2, 2)
    assert deviation(attention.scan(whole, fresh, layer)[0], attention.scan(right, fresh, layer)[0]) > 1e-3
