"""The short convolution: what is its own; its laws are those of `test_recurrences` and of the tests of trees and paths."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from ssmspec_ref import conv, error_bounds, shortconv
from ssmspec_ref.contract import FLOAT64, NumericContract
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.errors import ParameterError, ShapeMismatch, Unsupported
from ssmspec_ref.layers import layer, mixer
from ssmspec_ref.layers.recurrences import RECURRENCES
from ssmspec_ref.layers.shortconv import NO_CHANNELS
from ssmspec_ref.shortconv import ShortConvParams, ShortConvWindow, chunked
from tests.families import Sizes, shortconv_case
from tests.low_precision import low, rounded, stored

from .refusals import refused

CLOSE = {"rtol": 1e-13, "atol": 1e-13}
"""Sums of at most seven terms of size about 1."""


@pytest.mark.parametrize("width", [2, 3, 6])
@pytest.mark.parametrize("bias", [False, True])
def test_the_recurrence_is_the_plain_convolution_between_its_gates(width: int, bias: bool) -> None:
    S, window, params = shortconv_case(width, Sizes(w=width), "mamba", bias=bias)
    M = np.concatenate([np.zeros((*S.shape[:2], 1)), S], axis=2)
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


@pytest.mark.parametrize("form", ["fp32", "bf16"])
def test_bounds_hold_in_float32_and_with_columns_in_bf16(form: Any) -> None:
    """A rewriting in single precision, with its products in the state's format, is within its bound and not within a tenth
    of it."""
    S, window, params = map(stored, shortconv_case(9, Sizes(t=40, w=4), "mamba"))
    contract, begin = NumericContract(state=form), rounded(low(S), form)
    ext = np.concatenate([begin, rounded(low(window.B) * low(window.x), form).transpose(0, 2, 1)], axis=2)
    sums = [(ext[:, :, t : t + 4] * low(params.weight)).sum(axis=2) + low(params.bias) for t in range(40)]
    bound, after = error_bounds.shortconv.scan(begin.astype(np.float64), window, params, contract)
    y = low(window.C) * np.stack(sums, axis=1)
    assert 0.1 < error_bounds.compare(y, bound.value, bound.error).utilisation <= 1
    assert error_bounds.compare(ext[:, :, -3:], after.value, after.error).passed


def test_the_bound_of_columns_does_not_grow_with_the_run() -> None:
    S, window, params = shortconv_case(10, Sizes(t=200, w=3), "mamba")
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


def test_wrong_calls_are_refused_by_name() -> None:
    S, window, params = shortconv_case(14, Sizes(b=3, d=5, w=3), "mamba")
    for call in (shortconv.scan, chunked.scan):
        refused(ShapeMismatch, "keeps 2; give the last w - 1 products", call, np.zeros((3, 5, 3)), window, params)
    refused(ShapeMismatch, "axis d has size 4 in S", shortconv.step, S[:, :4], window.token(0), params)
    refused(ParameterError, "has 1 taps; give", ShortConvParams, np.ones((5, 1)))
    scaled = NumericContract(state="int8", state_scale="row")
    refused(
        Unsupported, "a new column changes the scale of the columns", error_bounds.shortconv.scan, S, window, params, scaled
    )
    assert np.all(error_bounds.shortconv.scan(S, window, params, FLOAT64)[0].error > 0)
