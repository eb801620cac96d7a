"""The short convolution: its derivations agree, its columns outlive every path of backtracking, wrong calls are refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from ssmspec_ref import conv, error_bounds, shortconv, tree
from ssmspec_ref.backtrack import Accepted, Draft, activation_replay, joint, snapshots
from ssmspec_ref.backtrack import tree as over_trees
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from ssmspec_ref.contract import FLOAT64, NumericContract
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.errors import NotNested, ParameterError, ShapeMismatch, Unsupported
from ssmspec_ref.layers import layer, mixer
from ssmspec_ref.layers.mixer import MixerInputs, MixerState
from ssmspec_ref.layers.recurrences import RECURRENCES
from ssmspec_ref.layers.shortconv import NO_CHANNELS, ShortConvGates, mixer_of
from ssmspec_ref.records import along, masked, prefix, rows
from ssmspec_ref.shapes import Array
from ssmspec_ref.shortconv import ShortConvParams, ShortConvWindow, buffered, chunked
from ssmspec_ref.shortconv import tree as shortconv_tree

B, D = 3, 5
CLOSE = {"rtol": 1e-13, "atol": 1e-13}
"""Sums of at most seven terms of size about 1."""
TREE = np.array([[-1, 0, 0, 1, 1, 2, 3, 6], [-1, 0, 1, 2, 3, 4, 5, 6], [-1, 0, 0, 0, -2, -2, -2, -2]])


def drawn(seed: int, width: int = 3, tokens: int = 8, bias: bool = True) -> tuple[Array, ShortConvWindow, ShortConvParams]:
    rng = np.random.default_rng(seed)
    params = ShortConvParams(rng.normal(size=(D, width)), rng.normal(size=D) if bias else None)
    window = ShortConvWindow(*(rng.normal(size=(B, tokens, D)) for _ in range(3)))
    return rng.normal(size=(B, D, width - 1)), window, params


@pytest.mark.parametrize("width", [2, 3, 6])
@pytest.mark.parametrize("bias", [False, True])
def test_the_recurrence_the_direct_sum_and_the_plain_convolution_agree(width: int, bias: bool) -> None:
    S, window, params = drawn(width, width, bias=bias)
    live = np.random.default_rng(1).random((B, 8)) < 0.6
    live[1] = False
    for mask in (None, live):
        wanted = shortconv.scan(S, window, params, mask)
        for chunk in (1, 3, 64):
            for one, other in zip(chunked.scan(S, window, params, mask, chunk=chunk), wanted, strict=True):
                assert_allclose(one, other, **CLOSE)
    M = np.concatenate([np.zeros((B, D, 1)), S], axis=2)
    c, after = conv.scan(M, window.B * window.x, ConvParams(params.weight, params.bias, False))
    y, S_next = shortconv.scan(S, window, params)
    assert_allclose(window.C * c, y, **CLOSE)
    assert_array_equal(after[:, :, 1:], S_next)


def test_a_convolution_of_ones_between_ones_is_a_moving_sum() -> None:
    """A number that can be added up by hand: 1 + 2 + 3, with a gate of 2 before and of 10 after."""
    window = ShortConvWindow(*(np.full((1, 3, 1), v) for v in (2.0, 10.0)), np.array([[[1.0], [2.0], [3.0]]]))
    y, S = shortconv.scan(np.zeros((1, 1, 2)), window, ShortConvParams(np.ones((1, 3))))
    assert_array_equal(y[0, :, 0], [20.0, 60.0, 120.0])
    assert_array_equal(S[0, 0], [4.0, 6.0])


@pytest.mark.parametrize("width", [2, 3, 6])
def test_a_node_convolves_over_its_ancestors(width: int) -> None:
    S, window, params = drawn(4, width)
    y = shortconv_tree.scan(S, window, tree.ancestors(TREE), params)
    for b, parents in enumerate(TREE):
        for node, parent in enumerate(parents):
            if parent == tree.PADDING:
                assert_array_equal(y[b, node], np.zeros(D))
                continue
            path = [node]
            while parents[path[0]] >= 0:
                path.insert(0, int(parents[path[0]]))
            run = along(rows(window, np.array([b])), np.array([path]))
            assert_allclose(y[b, node], shortconv.scan(S[b : b + 1], run, params)[0][0, -1], **CLOSE)


@pytest.mark.parametrize("path", [snapshots, joint, activation_replay, ReplayBuffer(16, 4)], ids=str)
def test_twelve_windows_are_plain_decoding(path: Any) -> None:
    """Every number of accepted tokens, from none to all, in rows that accept different ones."""
    S, _, params = drawn(5, 4)
    made, rng = mixer_of(params), np.random.default_rng(6)
    kept, plain, seen = path.start(MixerState(np.zeros((B, 0, 2)), S)), S, [[] for _ in range(B)]
    for number in range(12):
        fresh = drawn(100 + number, 4, tokens=4)[1]
        lag = path.refeed(kept)
        columns = [[*seen[b][len(seen[b]) - int(lag[b]) :], *(token(fresh, b, t) for t in range(4))] for b in range(B)]
        window, lengths = packed(columns)
        y, pending = path.verify(kept, Draft(inputs(window), lengths), made)
        wanted = shortconv.scan(plain, fresh, params)[0]
        at = lag[:, None] + np.arange(4)
        assert_allclose(np.take_along_axis(y, at[:, :, None], axis=1), wanted, **CLOSE)
        advanced = (number + np.arange(B)) % 5 if number < 5 else rng.integers(0, 5, B)
        kept = path.commit(pending, Accepted(advanced.astype(np.int64)), made)
        plain = shortconv.scan(plain, fresh, params, np.arange(4) < advanced[:, None])[1]
        for b in range(B):
            seen[b] += [token(fresh, b, t) for t in range(advanced[b])]
        if not path.refeed(kept).any():
            assert_allclose(path.restore(kept, made).S, plain, **CLOSE)


def token(window: ShortConvWindow, b: int, t: int) -> list[Array]:
    return [window.B[b, t], window.C[b, t], window.x[b, t]]


def packed(columns: list[list[list[Array]]]) -> tuple[ShortConvWindow, Array]:
    lengths = np.array([len(row) for row in columns])
    padded = [row + [[np.zeros(D)] * 3] * (max(lengths) - len(row)) for row in columns]
    B_, C, x = np.array(padded).transpose(2, 0, 1, 3)
    return ShortConvWindow(B_.copy(), C.copy(), x.copy()), lengths


def inputs(window: ShortConvWindow) -> MixerInputs:
    return MixerInputs(window.x[..., :0], ShortConvGates(window.B, window.C, window.x))


def test_a_path_of_a_tree_is_committed_column_by_column() -> None:
    S, window, params = drawn(7, 3)
    made, state = mixer_of(params), MixerState(np.zeros((B, 0, 2)), S)
    path = np.array([[0, 1, 3, 6, 7, -1, -1, -1], [0, 1, 2, -1, -1, -1, -1, -1], [0, 3, -1, -1, -1, -1, -1, -1]])
    advanced = (path >= 0).sum(axis=1)
    kept = over_trees.start(state)
    _, pending = over_trees.verify(kept, Draft(inputs(window), parents=TREE), made)
    after = over_trees.restore(over_trees.commit(pending, Accepted(advanced, path=path), made), made)
    assert_allclose(after.S, shortconv.scan(S, along(window, path), params, path >= 0)[1], **CLOSE)


def test_a_ring_of_any_length_folds_to_the_last_columns() -> None:
    S, window, params = drawn(8, 4)
    history = buffered.entries(window, params)
    for count in (0, 1, 2, 3, 8):
        held = np.arange(8) < np.full((B, 1), count)
        wanted = shortconv.scan(S, window, params, held)[1]
        assert_array_equal(buffered.fold(S, history, held, params), wanted)
        for route in (buffered.output_only, buffered.state_and_output):
            y, new = route(S, history, held, prefix(window, 3), params, np.ones((B, 3), dtype=bool))
            assert_allclose(y, shortconv.scan(wanted, prefix(window, 3), params)[0], **CLOSE)
            assert_array_equal(new.u, (window.B * window.x)[:, :3])


def test_bounds_hold_in_float32_and_with_columns_in_bf16() -> None:
    """A rewriting in single precision, with its products in the state's format, is within its bound and not within a tenth
    of it."""
    S, window, params = drawn(9, 4, tokens=40)
    S, window, params = (
        S.astype(np.float32).astype(np.float64),
        each32(window),
        replace(params, weight=narrow(params.weight), bias=narrow(params.bias)),
    )
    for form, most in (("fp32", 1.0), ("bf16", 1.0)):
        contract = NumericContract(state=form)
        u = (window.B.astype(np.float32) * window.x.astype(np.float32)).astype(np.float64)
        u = u if form == "fp32" else bf16(u)
        begin = S if form == "fp32" else bf16(S)
        ext = np.concatenate([begin, u.transpose(0, 2, 1)], axis=2).astype(np.float32)
        taps, bias = params.weight.astype(np.float32), params.bias.astype(np.float32)
        sums = [(ext[:, :, t : t + 4] * taps).sum(axis=2) + bias for t in range(40)]
        y = window.C.astype(np.float32) * np.stack(sums, axis=1)
        bound, after = error_bounds.shortconv.scan(begin, window, params, contract)
        share = np.abs(y - bound.value) / bound.error
        assert 0.1 < share.max() <= most
        assert np.all(np.abs(ext[:, :, -3:] - after.value) <= after.error)


def each32(window: ShortConvWindow) -> ShortConvWindow:
    return ShortConvWindow(narrow(window.B), narrow(window.C), narrow(window.x))


def narrow(a: Any) -> Any:
    return a.astype(np.float32).astype(np.float64)


def bf16(a: Array) -> Array:
    bits = a.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def test_the_bound_of_columns_does_not_grow_with_the_run() -> None:
    S, window, params = drawn(10, 3, tokens=200)
    error = error_bounds.shortconv.scan(S, window, params, NumericContract())[0].error
    assert error[:, 100:].max() < 3 * error[:, :100].max()


def test_a_layer_projects_gates_in_the_order_of_lfm2() -> None:
    made: Any = RECURRENCES["shortconv"].tiny[1](np.random.default_rng(11))
    u = np.random.default_rng(12).normal(size=(2, 6, 10))
    B_, C, x = np.split(made.in_proj.apply(u), 3, axis=2)
    y, S = shortconv.scan(np.zeros((2, 6, 2)), ShortConvWindow(B_, C, x), made.mixer.params)
    out, after = layer.scan(mixer.new_state(made.mixer, 2), u, made)
    assert_allclose(out, made.out_proj.apply(y), **CLOSE)
    assert_array_equal(after.S, S)
    assert after.M.shape == (2, 0, NO_CHANNELS.width)


def test_values_of_no_ops_are_never_read() -> None:
    S, window, params = drawn(13)
    live = np.arange(8) % 2 == np.arange(B)[:, None] % 2
    ill = ShortConvWindow(*(np.where(live[:, :, None], a, np.nan) for a in (window.B, window.C, window.x)))
    for scan in (shortconv.scan, chunked.scan):
        for one, other in zip(scan(S, ill, params, live), scan(S, masked(window, live), params, live), strict=True):
            assert_array_equal(one, other)


def test_wrong_calls_are_refused_by_name() -> None:
    S, window, params = drawn(14)
    for call in (shortconv.scan, chunked.scan):
        with pytest.raises(ShapeMismatch, match="keeps 2; give the last w - 1 products"):
            call(np.zeros((B, D, 3)), window, params)
    with pytest.raises(ShapeMismatch, match="axis d has size 4 in S"):
        shortconv.step(S[:, :4], window.token(0), params)
    with pytest.raises(ParameterError, match="has 1 taps; give"):
        ShortConvParams(np.ones((D, 1)))
    crossed = np.broadcast_to(np.eye(8, dtype=bool), (B, 8, 8)).copy()
    crossed[:, 2, [0, 1]], crossed[:, 3, [0, 2]], crossed[:, 1, 0] = True, True, False
    with pytest.raises(NotNested):
        shortconv_tree.scan(S, window, crossed, params)
    scaled = NumericContract(state="int8", state_scale="row")
    with pytest.raises(Unsupported, match="a new column changes the scale of the columns"):
        error_bounds.shortconv.scan(S, window, params, scaled)
    assert np.all(error_bounds.shortconv.scan(S, window, params, FLOAT64)[0].error > 0)
