"""Attacks on the bounds: right implementations on the inputs that are worst for them, and wrong ones that once lay below."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from conformance.suite.recurrences.ssd import RECURRENCE
from ssmspec_ref import delta, error_bounds, ssd
from ssmspec_ref.contract import UNIT_ROUNDOFF, NumericContract
from ssmspec_ref.shapes import Array
from tests.low_precision import F32, FP32, Machine, low, rounded, used, wide

GRID = 2.0**-149  # of float32 below its normal range


def pair_of(value: float, contract: NumericContract = FP32) -> error_bounds.Approx:
    return error_bounds.exact(np.array([value]), contract)


# ------------------------------------------------------------------------------------------------------- decays


def test_running_sums_may_be_scaled_to_powers_of_two_before_they_are_subtracted() -> None:
    """A strong decay, then a gentle one: cs_1 - cs_0 is small, and both cs were rounded once more by log2 e."""
    declared, rng, worst = replace(FP32, exp="ex2", order="chunked"), np.random.default_rng(0), [0.0, 0.0]
    one, params = np.ones((1, 2, 1, 1)), ssd.SSDParams(np.array([-1.0]), dt_softplus=False)
    for _ in range(200):
        dt = wide(np.array([rng.uniform(200, 2000), 10 ** rng.uniform(-4, 0)], F32)).reshape(1, 2, 1)
        inputs = np.zeros((1, 1, 1, 1)), ssd.SSDWindow(one, dt, one, one), params
        y, S = Machine(declared, variant=1).ssd(*inputs)
        for i, contract in enumerate((declared, replace(declared, exp="libm"))):
            y_bound, S_bound = error_bounds.ssd.scan(*inputs, contract)
            worst[i] = max(worst[i], used(y, y_bound), used(S, S_bound))
    assert 0.5 < worst[0] <= 1 < worst[1]


def test_a_tree_that_is_stepped_may_be_wrong_by_the_error_of_each_decay() -> None:
    """33 nodes below each other that all decay alike, so that the errors of their exponentials add up."""
    nodes, worst = 33, [0.0, 0.0]
    S, ones, mask = np.ones((1, 1, 1, 1)), np.ones((1, nodes, 1, 1)), np.tri(nodes, dtype=bool)[None]
    params = ssd.SSDParams(np.array([-1.0]), dt_softplus=False)
    for z in np.linspace(0.001, 0.2, 50):
        window = ssd.SSDWindow(0 * ones, np.full((1, nodes, 1), float(F32(z))), ones, ones)
        y, _ = Machine(FP32).ssd(S, window, params)
        for i, order in enumerate(("sequential", "output_only")):
            (bound,) = RECURRENCE.bound_tree(S, window, mask, params, replace(FP32, order=order))
            worst[i] = max(worst[i], used(y, bound))
    assert worst[0] <= 1 < worst[1]


# --------------------------------------------------------------------------------------------------------- ring


def by_single_tokens(window: delta.DeltaWindow, ring: str) -> Array:
    """The state of one row and head without decay, every key rounded as it is formed, every u as the ring holds it."""
    keys, held = (rounded(low(window.k), ring)[0, :, 0], np.zeros(window.k.shape[-1], F32))
    for k, v in zip(keys, low(window.v)[0, :, 0, 0], strict=True):
        held = held + k * rounded(v - F32(held @ k), ring)
    return wide(held)[None, None, :, None]


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_what_a_ring_rounded_is_read_again_by_the_tokens_behind_it(share: float) -> None:
    """u_2 is 0, so that what it is wrong by is what it read of u_1; it stands alone in the second row of the state."""
    up = 1 + 2.0**-8  # halfway between two numbers of bf16, to be rounded down
    k = np.array([[up, 0.0], [up, up * share]])
    v = wide(low(np.array([up, k[0] @ k[1] * up])))
    window = delta.DeltaWindow(k[None, :, None], k[None, :, None], v[None, :, None, None], *np.zeros((2, 1, 2, 1)))
    window = replace(window, beta=np.ones((1, 2, 1)))
    params, start = delta.DeltaParams(scale=1.0, l2_norm=False), np.zeros((1, 1, 2, 1))
    declared = replace(FP32, order="output_only", ring="bf16")
    _, S_bound = error_bounds.delta.scan(start, window, params, declared)
    assert 0.9 < used(by_single_tokens(window, "bf16"), S_bound) <= 1
    _, strict = error_bounds.delta.scan(start, window, params, replace(declared, ring=None))
    assert used(by_single_tokens(window, "fp32"), strict) <= 1
    assert used(by_single_tokens(window, "bf16"), strict) > 1


def test_tokens_before_the_first_value_have_bound_zero_also_where_writes_reflect() -> None:
    """beta = 2: entries of A above 1, for which an inverse exchanges rows and lets later tokens leak into earlier ones."""
    rng, tokens = np.random.default_rng(0), 12
    k, v = rng.normal(size=(1, tokens, 1, 3)), rng.normal(size=(1, tokens, 1, 2))
    k, v[:, :4] = k / np.linalg.norm(k, axis=3, keepdims=True), 0.0
    window = delta.DeltaWindow(k[..., ::-1].copy(), k, v, np.zeros((1, tokens, 1)), np.full((1, tokens, 1), 2.0))
    contract = replace(FP32, order="output_only")
    o, _ = error_bounds.delta.scan(np.zeros((1, 1, 3, 2)), window, delta.DeltaParams(scale=1.0, l2_norm=False), contract)
    assert not o.value[:, :4].any()
    assert not o.error[:, :4].any()
    assert np.all(o.error[:, 5:] > 0)


# ---------------------------------------------------------------------------------------------- below the normal range


@pytest.mark.parametrize("name", ["exp", "softplus"])
def test_below_the_normal_range_the_ulp_of_a_function_are_steps_of_the_grid(name: str) -> None:
    """exp(-100) is 27 steps; two beside it are 2 ulp. Zero is 27 ulp, but for arithmetic that flushes."""
    function = getattr(error_bounds, name)
    pair = function(pair_of(-100.0))
    near = np.round(pair.value / GRID)
    assert near == 27
    assert used((near + 2) * GRID, pair) <= 1
    assert used(np.zeros(1), pair) > 1
    assert used(np.zeros(1), function(pair_of(-100.0, replace(FP32, ftz=True)))) <= 1


def test_a_format_with_more_digits_and_a_smaller_range_rounds_too() -> None:
    """bf16 has 8 digits and fp16 has 11, but below 2^-14 fp16 has fewer, and above 65504 none."""
    x = wide(rounded(np.array([1e-7, 3e-6, 1.0], F32), "bf16"))
    pair = error_bounds.exact(x, NumericContract(accumulate="bf16")).store("fp16")
    assert 0 < used(rounded(low(x), "fp16"), pair) <= 1
    assert np.isinf(pair_of(2.0**16, NumericContract(accumulate="bf16")).store("fp16").error)


# ---------------------------------------------------------------------------------------------------------- functions


def test_softplus_is_the_identity_above_the_threshold_and_not_0_below_its_negative() -> None:
    assert used(np.array([25.0]), error_bounds.softplus(pair_of(25.0))) <= 1
    below = error_bounds.softplus(pair_of(-25.0))
    assert used(np.log1p(np.exp(np.array([-25.0], F32))), below) <= 1
    assert used(np.zeros(1), below) > 1
    early = error_bounds.softplus(error_bounds.exact(np.array([4.0]), replace(FP32, softplus_threshold=5.0), np.array([1.5])))
    for x in (2.5, 4.0, 5.5):  # wherever x was computed, and above the threshold x itself
        assert used(np.array([np.logaddexp(0.0, x) if x <= 5 else x]), early) <= 1


def wrong_exp(x: Array, signs: tuple[int, ...], r: float, contract: NumericContract) -> Array:
    """exp with both roundings of 2^(x log2 e), and its own error r, in the given directions."""
    u = UNIT_ROUNDOFF["fp32"]
    return np.exp(x * (1 + signs[1] * u) ** 2 if contract.exp == "ex2" else x) * (1 + signs[0] * r)


WORST: dict[str, Any] = {
    "softplus": lambda x, e, s, r, u: (np.maximum(x, 0) + np.log1p(e(-np.abs(x))) * (1 + s[2] * r)) * (1 + s[3] * u),
    "sigmoid": lambda x, e, s, r, u: (1 + s[3] * r) / ((1 + e(-x)) * (1 + s[2] * u)),
    "silu": lambda x, e, s, r, u: x * (1 + s[3] * r) / ((1 + e(-x)) * (1 + s[2] * u)) * (1 + s[3] * u),
}


@pytest.mark.parametrize("name", WORST)
@pytest.mark.parametrize("contract", [NumericContract(), NumericContract(exp="ex2")], ids=["libm", "ex2"])
def test_a_function_whose_every_rounding_goes_the_same_way_reaches_its_bound_and_no_further(
    name: str, contract: NumericContract
) -> None:
    u, r = UNIT_ROUNDOFF["fp32"], 2 * contract.function_ulp * UNIT_ROUNDOFF["fp32"]
    # not at 1, by which silu multiplies exactly
    x = np.concatenate([np.linspace(-80, 80, 800), np.linspace(-3, 3, 600), np.linspace(-1e-3, 1e-3, 40)])
    pair, worst = getattr(error_bounds, name)(error_bounds.exact(x, contract)), 0.0
    for signs in product((-1, 1), repeat=4):
        got = WORST[name](x, lambda v, signs=signs: wrong_exp(v, signs, r, contract), signs, r, u)
        worst = max(worst, used(got, pair))
    assert 0.99 < worst <= 1 + 2.0**-29  # the float64 of this test rounds too, 2^-53 where u is 2^-24


def test_the_mean_of_a_norm_may_be_divided_as_badly_as_a_library_divides() -> None:
    """One channel of three, so that squares, mean, root and quotient are each wrong as far as they may be."""
    contract, u = NumericContract(), UNIT_ROUNDOFF["fp32"]
    r = 2 * contract.function_ulp * u
    for s in (-1, 1):
        mean = 1.5**2 * (1 - s * u) / 3 * (1 - s * r) * (1 - s * u)  # the last: eps is added, and nothing but a rounding
        got = 1.5 / (np.sqrt(mean) * (1 - s * r)) * (1 + s * r) * 1.25 * (1 + s * u)
        pair = error_bounds.rms(error_bounds.exact(np.array([1.5, 0.0, 0.0]), contract), np.full(3, 1.25), 1e-30)
        assert 0.9 < used(np.array([got, 0.0, 0.0]), pair) <= 1


def test_attention_may_divide_its_weights_before_it_reads_the_values() -> None:
    """Two equal weights, each exponential and each quotient wrong as far as it may be, read values that cancel."""
    contract, u = NumericContract(), UNIT_ROUNDOFF["fp32"]
    r = 2 * contract.function_ulp * u
    q, k, v = np.zeros((1, 1, 1, 1)), np.ones((1, 2, 1, 1)), np.array([1.0, -1.0]).reshape(1, 2, 1, 1)
    pair = error_bounds.attention(*(error_bounds.exact(x, contract) for x in (q, k, v)), np.ones((1, 1, 2), bool), 1.0)
    p = np.array([1 + r, 1 - r])
    weights = p / p.sum() * (1 + np.array([r, -r])) * (1 + np.array([u, -u]))
    assert 0.5 < used((weights[0] - weights[1]).reshape(q.shape), pair) <= 1


# ---------------------------------------------------------------------------------------------------- matrix products


def cut(x: float) -> float:
    """A tf32 number, the other digits cut off."""
    return float((np.array([x], F32).view(np.uint32) & np.uint32(0xFFFFE000)).view(F32)[0])


def test_two_halves_of_an_operand_that_are_cut_off_lose_four_times_what_rounded_ones_lose() -> None:
    x = 1 + (2**13 - 1) * 2.0**-23  # what the first half leaves is as large as it can be
    high, rest = cut(x), cut(x - cut(x))
    contract = replace(FP32, dot="tf32x3")
    got = np.array([F32(high * high) + F32(high * rest) + F32(rest * high)])
    pair, strict = (
        error_bounds.sum_of_products(("i, i -> i", pair_of(x, c), pair_of(x, c)), matmuls=1)
        for c in (replace(contract, truncates=True), contract)
    )
    assert used(got, pair) <= 1 < used(got, strict)


def test_the_three_products_of_a_term_of_tf32x3_may_cost_a_rounding_each() -> None:
    """64 ones first, then 128 small products, each 0.47 of the sum's last place above a number that it can hold."""
    contract, n = replace(FP32, dot="tf32x3"), 64
    rest = 2.0**-12 + 2.0**-18 - 2.0**-22
    operand = error_bounds.exact(np.full((1, n), 1 + rest), contract)
    total = F32(n)
    for _ in range(2 * n):
        total = total + F32(rest)
    pair = error_bounds.sum_of_products(("in, in -> i", operand, operand), matmuls=1)
    assert 0.5 < used(np.array([total]), pair) <= 1
    assert abs(total - pair.value[0]) > (n + 1) * UNIT_ROUNDOFF["fp32"] * pair.value[0]  # more than one rounding a term
