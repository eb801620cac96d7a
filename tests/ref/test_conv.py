"""The causal convolution: the step, its runs, and the finite impulse response as a second derivation."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssmspec_ref import conv, records
from ssmspec_ref.conv import filter as conv_filter
from ssmspec_ref.shapes import Array
from tests import families
from tests.families import TOLERANCE, Sizes, deviation, same_bits

quick = settings(deadline=None, derandomize=True, max_examples=100)


def garbage(u: Array, live: Array) -> Array:
    """u with NaN and inf in every no-op."""
    poison = np.resize([np.nan, np.inf, -np.inf], u.shape)
    return np.where(live[:, :, None], u, poison)


def drawn_live(seed: int, sizes: Sizes) -> Array:
    return np.random.default_rng([seed, 9]).uniform(size=(sizes.b, sizes.t)) < 0.6


@quick
@given(families.drawn_sizes(), families.seeds, st.booleans(), st.booleans())
def test_scan_equals_the_finite_impulse_response(sizes: Sizes, seed: int, bias: bool, activation: bool) -> None:
    M, u, params = families.conv_case(seed, sizes, bias, activation)
    y, M_next = conv.scan(M, u, params)
    y_ref, M_ref = conv_filter.scan(M, u, params)
    assert deviation(y_ref, y) <= TOLERANCE
    assert same_bits(M_next, M_ref)


@quick
@given(families.drawn_sizes(), families.seeds, st.booleans(), st.booleans())
def test_masked_scan_equals_the_response_to_the_live_inputs_alone(sizes: Sizes, seed: int, bias: bool, act: bool) -> None:
    M, u, params = families.conv_case(seed, sizes, bias, act)
    live = drawn_live(seed, sizes)
    y, M_next = conv.scan_masked(M, garbage(u, live), live, params)
    y_ref, M_ref = conv_filter.scan(M, u, params, live)
    assert deviation(y, y_ref) <= TOLERANCE
    assert same_bits(M_next, M_ref)
    assert not y[~live].any()


@quick
@given(families.drawn_sizes(), families.seeds, st.data())
def test_a_run_in_two_parts_is_the_run(sizes: Sizes, seed: int, data: st.DataObject) -> None:
    M, u, params = families.conv_case(seed, replace(sizes, t=sizes.t + 1))
    cut = data.draw(st.integers(1, sizes.t))
    y, M_next = conv.scan(M, u, params)
    first, M_cut = conv.scan(M, u[:, :cut], params)
    second, M_end = conv.scan(M_cut, u[:, cut:], params)
    assert same_bits(np.concatenate([first, second], axis=1), y)
    assert same_bits(M_end, M_next)


@quick
@given(families.drawn_sizes(), families.seeds)
def test_inserting_no_ops_anywhere_changes_no_bit(sizes: Sizes, seed: int) -> None:
    M, u, params = families.conv_case(seed, replace(sizes, b=1))
    live = np.sort(np.random.default_rng(seed).permutation(2 * sizes.t)[: sizes.t])
    mask = np.isin(np.arange(2 * sizes.t), live)[None]
    stretched = np.full((1, 2 * sizes.t, u.shape[2]), np.nan)
    stretched[mask] = u[0]
    y, M_next = conv.scan(M, u, params)
    y_stretched, M_stretched = conv.scan_masked(M, stretched, mask, params)
    assert same_bits(y_stretched[mask][None], y)
    assert same_bits(M_stretched, M_next)


@quick
@given(families.drawn_sizes(), families.seeds, st.data())
def test_commit_is_the_window_after_the_accepted_inputs_alone(sizes: Sizes, seed: int, data: st.DataObject) -> None:
    M, u, params = families.conv_case(seed, sizes)
    advanced = np.array(data.draw(st.lists(st.integers(0, sizes.t), min_size=sizes.b, max_size=sizes.b)))
    live = np.arange(sizes.t) < advanced[:, None]
    _, M_ref = conv.scan_masked(M, u, live, params)
    assert same_bits(conv.commit(M, garbage(u, live), advanced), M_ref)


@quick
@given(families.drawn_sizes(), families.seeds)
def test_commit_of_a_path_is_the_scan_of_its_inputs(sizes: Sizes, seed: int) -> None:
    M, u, params = families.conv_case(seed, sizes)
    taken = drawn_live(seed, sizes)
    path = np.full((sizes.b, sizes.t), -1)
    for b in range(sizes.b):
        path[b, : taken[b].sum()] = np.flatnonzero(taken[b])
    _, M_ref = conv.scan_masked(M, u, taken, params)
    assert same_bits(conv.commit_path(M, garbage(u, taken), path), M_ref)


def test_a_channel_never_hears_another() -> None:
    M, u, params = families.conv_case(3, Sizes())
    louder = u.copy()
    louder[:, :, 2] += 5.0
    y, _ = conv.scan(M, u, params)
    changed = conv.scan(M, louder, params)[0] != y
    assert changed[:, :, 2].all()
    assert not np.delete(changed, 2, axis=2).any()


def test_two_taps_by_hand() -> None:
    params = conv.ConvParams(np.array([[2.0, 3.0]]), np.array([0.5]), activation=False)
    y, M = conv.scan(np.array([[[7.0, 1.0]]]), np.array([[[10.0], [20.0]]]), params)
    assert y.tolist() == [[[2 * 1 + 3 * 10 + 0.5], [2 * 10 + 3 * 20 + 0.5]]]
    assert M.tolist() == [[[10.0, 20.0]]]


# ------------------------------------------------------------------------------------------------------- planted faults


def wrong_step(change: Callable[..., Any]) -> Callable[..., Any]:
    """A step whose next window, from (M, u), is another."""

    def step(M: Array, u: Array, params: conv.ConvParams) -> tuple[Array, Array]:
        M_next = change(M, u)
        return conv.read(M_next, params), M_next

    return step


STEP_FAULTS: dict[str, Callable[..., Any]] = {
    "newest input first": lambda M, u: np.concatenate([u[:, :, None], M[:, :, :-1]], axis=2),
    "newest input one place early": lambda M, u: np.concatenate([M[:, :, 2:], u[:, :, None], M[:, :, -1:]], axis=2),
    "window never moves": lambda M, u: np.concatenate([M[:, :, :-1], u[:, :, None]], axis=2),
    "history forgotten": lambda M, u: np.concatenate([0 * M[:, :, 1:], u[:, :, None]], axis=2),
}


@pytest.mark.parametrize("fault", STEP_FAULTS)
def test_planted_windows_are_caught_by_the_response(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    M, u, params = families.conv_case(5, Sizes())
    monkeypatch.setattr(conv, "step", wrong_step(STEP_FAULTS[fault]))
    y, M_next = conv.scan(M, u, params)
    y_ref, M_ref = conv_filter.scan(M, u, params)
    assert not (deviation(y, y_ref) <= TOLERANCE and same_bits(M_next, M_ref))


READ_FAULTS: dict[str, Callable[[conv.ConvParams], conv.ConvParams]] = {
    "taps reversed": lambda p: replace(p, weight=p.weight[:, ::-1]),
    "bias left out": lambda p: replace(p, bias=None),
    "no activation": lambda p: replace(p, activation=False),
    "taps of the next channel": lambda p: replace(p, weight=np.roll(p.weight, 1, axis=0)),
}


@pytest.mark.parametrize("fault", READ_FAULTS)
def test_planted_taps_are_caught_by_the_response(fault: str) -> None:
    M, u, params = families.conv_case(5, Sizes())
    y, _ = conv.scan(M, u, READ_FAULTS[fault](params))
    assert not deviation(y, conv_filter.scan(M, u, params)[0]) <= TOLERANCE


def zeroed_before_only(M: Array, u: Array, live: Array, params: conv.ConvParams) -> tuple[Array, Array]:
    """No-ops set to 0 before the convolution and then convolved: they take a place in the order."""
    return conv.scan(M, records.masked(u, live), params)


def output_kept(M: Array, u: Array, live: Array, params: conv.ConvParams) -> tuple[Array, Array]:
    """No-ops stay out of the window, but their output, bias and all, goes on."""
    outputs = []
    for t in range(u.shape[1]):
        y, M_next = conv.step(M, u[:, t], params)
        M = np.where(live[:, t, None, None], M_next, M)
        outputs.append(y)
    return np.stack(outputs, axis=1), M


@pytest.mark.parametrize("fault", [zeroed_before_only, output_kept])
def test_planted_no_ops_are_caught(fault: Callable[..., Any]) -> None:
    M, u, params = families.conv_case(6, Sizes())
    live = np.array([[1, 0, 1, 1, 0, 1, 1], [0, 0, 1, 1, 1, 1, 0]], dtype=bool)
    y, M_next = fault(M, u, live, params)
    y_ref, M_ref = conv_filter.scan(M, u, params, live)
    assert not (deviation(y, y_ref) <= TOLERANCE and same_bits(M_next, M_ref))


@pytest.mark.parametrize("shift", [-1, 1, "from the start", "to the end"])
def test_planted_commits_are_caught(shift: int | str) -> None:
    M, u, params = families.conv_case(7, Sizes())
    advanced = np.array([2, 5])
    begin = {"from the start": 0 * advanced, "to the end": 0 * advanced + u.shape[1]}.get(shift)  # type: ignore[arg-type]
    columns = (advanced + shift if begin is None else begin)[:, None] + np.arange(M.shape[2])
    ext = np.concatenate([M, u.transpose(0, 2, 1)], axis=2)
    wrong = np.take_along_axis(ext, columns[:, None, :], axis=2)
    _, M_ref = conv_filter.scan(M, u, params, np.arange(u.shape[1]) < advanced[:, None])
    assert same_bits(conv.commit(M, u, advanced), M_ref)
    assert not same_bits(wrong, M_ref)
