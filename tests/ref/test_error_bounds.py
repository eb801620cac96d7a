"""The rules of the error bounds: operations, functions, comparison, layers; and float64 itself against its own bound."""

import operator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref import attention, error_bounds, tree
from ssmspec_ref.contract import FLOAT64, UNIT_ROUNDOFF, NumericContract
from ssmspec_ref.errors import ParameterError, ShapeMismatch
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.norm import GatedNorm, Norm, gated, rms
from ssmspec_ref.shapes import Array
from tests.families import Family, Sizes, each_family, examples
from tests.low_precision import F32, FP32, SUMS, Machine, low, rounded, stored, used, within

from .recurrences import ALL, DECAYING, case, drawn
from .refusals import refused

U = UNIT_ROUNDOFF["fp32"]
ENDS = (-1 + 2.0**-40, 0.0, 1 - 2.0**-40)  # so that a + e, rounded, lies no further from a than e
quick = examples(25)


def wide_range(seed: int, size: int = 4000, low_power: float = -30, high_power: float = 30) -> Array:
    """Float32 numbers of both signs and all magnitudes."""
    rng = np.random.default_rng(seed)
    x = rng.choice([-1.0, 1.0], size) * 10.0 ** rng.uniform(low_power, high_power, size)
    return x.astype(F32).astype(np.float64)


# ------------------------------------------------------------------------------------------------------------ operations

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_errs_by_one_rounding_at_most_and_the_bound_is_sharp(name: str) -> None:
    function = OPERATIONS[name]
    a, b = wide_range(1, low_power=-18, high_power=18), wide_range(2, low_power=-18, high_power=18)
    got = function(low(a), low(b))
    pair = function(error_bounds.exact(a, FP32), error_bounds.exact(b, FP32))
    assert used(got, pair) <= 1
    assert used(got, pair) > (0.1 if name == "/" else 0.9)  # division may be a library function


@pytest.mark.parametrize("name", OPERATIONS)
def test_errors_of_the_operands_reach_the_result(name: str) -> None:
    """The result from operands at either end of their intervals lies within the bound, at u = 2^-53."""
    function = OPERATIONS[name]
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 500))
    e_a, e_b = 0.3 * np.abs(rng.normal(size=500)), 0.5 * np.abs(b)
    pair = function(error_bounds.exact(a, FLOAT64, e_a), error_bounds.exact(b, FLOAT64, e_b))
    worst = max(used(function(a + s * e_a, b + r * e_b), pair) for s in ENDS for r in ENDS)
    assert 0.5 < worst <= 1


def test_what_is_exact_has_bound_zero() -> None:
    x = error_bounds.exact(np.array([3.0, 1e-3, -7.5]), FP32)
    zero, one = (error_bounds.exact(np.full(3, v), FP32) for v in (0.0, -1.0))
    for pair in (x + zero, x * zero, x * one, one * x, x - zero, error_bounds.exp(zero)):
        assert not pair.error.any()
    assert (x + x * zero).error.max() == 0
    assert np.all((x * x).error > 0)


def test_storing_errs_by_half_the_distance_to_the_next_number_and_that_is_sharp() -> None:
    x = wide_range(4, low_power=-30, high_power=30)
    for form in ("bf16", "fp16"):
        x_form = x[np.abs(x) < 6e4] if form == "fp16" else x
        pair = error_bounds.exact(x_form, FP32).store(form)
        assert 0.95 < used(rounded(low(x_form), form), pair) <= 1
    assert np.isinf(error_bounds.exact(np.array([7e4]), FP32).store("fp16").error).all()
    assert not error_bounds.exact(x, FP32).store("fp32").error.any()


@pytest.mark.parametrize("dot", ["ieee", "tf32", "bf16"])
def test_a_sum_of_products_errs_within_the_bound_in_every_order(dot: Any) -> None:
    contract, rng = replace(FP32, dot=dot), np.random.default_rng(5)
    for n in (1, 2, 7, 130):
        x, y, bias = (
            a.astype(F32).astype(float) for a in (rng.normal(size=(40, n)), rng.normal(size=(40, n)), rng.normal(size=40))
        )
        x[:, ::3] *= 1e4
        pairs = [error_bounds.exact(a, contract) for a in (x, y, bias)]
        pair = error_bounds.sum_of_products(("in, in -> i", *pairs[:2]), ("i -> i", pairs[2]), matmuls=1)
        for sums in SUMS:
            for variant in (0, 1):
                assert used(Machine(contract, sums, variant).dot(low(x), low(y), low(bias)), pair) <= 1
        if dot != "ieee" and n > 1:
            strict = error_bounds.sum_of_products(("in, in -> i", *(replace(p, contract=FP32) for p in pairs[:2])), matmuls=1)
            assert used(Machine(contract).dot(low(x), low(y)), strict) > 1


def test_factors_may_be_taken_out_of_a_sum_in_any_way() -> None:
    """sum_n a b_n c_n, with a taken inside, taken outside, or multiplied into either factor first."""
    rng = np.random.default_rng(6)
    a, b, c = (v.astype(F32) for v in (rng.normal(size=(60, 1)), rng.normal(size=(60, 9)), rng.normal(size=(60, 9))))
    pairs = [error_bounds.exact(v.astype(float), FP32) for v in (a[:, 0], b, c)]
    pair = error_bounds.sum_of_products(("i, in, in -> i", *pairs))
    for got in (a[:, 0] * (b * c).sum(1), ((a * b) * c).sum(1), (b * (a * c)).sum(1)):
        assert got.dtype == F32
        assert used(got, pair) <= 1


def test_more_roundings_than_digits_are_refused() -> None:
    x = error_bounds.exact(np.ones((1, 300)), NumericContract(accumulate="bf16"))
    refused(ParameterError, r"no digit is correct.*wider format", error_bounds.sum_of_products, ("in, in -> i", x, x))


# ------------------------------------------------------------------------------------------------------------- functions

FUNCTIONS: dict[str, Any] = {
    "exp": np.exp,
    "softplus": lambda x: np.logaddexp(0, x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
}


@pytest.mark.parametrize("name", list(FUNCTIONS)[:4])
@pytest.mark.parametrize(
    "contract", [FP32, replace(FP32, exp="ex2"), replace(FP32, softplus="log")], ids=["libm", "ex2", "log"]
)
def test_a_function_in_float32_stays_within_its_bound(name: str, contract: NumericContract) -> None:
    x = np.concatenate([wide_range(7, 20000, -8, 2), np.linspace(-100, 85, 20001)]).clip(-100, 85).astype(F32).astype(float)
    pair = getattr(error_bounds, name)(error_bounds.exact(x, contract))
    for variant in (0, 1):
        assert 0.1 < used(getattr(Machine(contract, variant=variant), name)(low(x)), pair) <= 1


def test_softplus_as_the_logarithm_of_a_sum_is_refused_where_log1p_was_declared() -> None:
    x = np.linspace(-12, -6, 500).astype(F32).astype(float)
    pair = error_bounds.softplus(error_bounds.exact(x, FP32))
    assert used(Machine(replace(FP32, softplus="log")).softplus(low(x)), pair) > 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_error_of_an_argument_goes_through_a_function(name: str) -> None:
    rng = np.random.default_rng(8)
    x = rng.uniform(0.5, 3, 2000) if name == "rsqrt" else rng.normal(size=2000) * 6
    error = np.abs(x) * rng.uniform(0, 0.4, 2000)
    pair = getattr(error_bounds, name)(error_bounds.exact(x, FLOAT64, error))
    worst = max(used(FUNCTIONS[name](x + s * error), pair) for s in np.linspace(-1, 1, 9) * ENDS[2])
    assert 0.5 < worst <= 1


def test_clipping_forgets_what_lies_outside_the_limits() -> None:
    x = error_bounds.exact(np.array([-1.0, 0.05, 0.0999, 9.0]), FP32, np.full(4, 1e-3))
    pair = error_bounds.clip(x, 0.001, 0.1)
    assert np.array_equal(pair.value, [0.001, 0.05, 0.0999, 0.1])
    assert pair.error[0] <= U * 0.001
    assert np.array_equal(pair.error[1:3], [1e-3, 1e-3])
    assert 0 < pair.error[3] <= U * 0.1


# ------------------------------------------------------------------------------------------- norms, maps and attention


def test_norms_and_linear_maps_in_float32_stay_within_their_bounds() -> None:
    rng = np.random.default_rng(9)
    x, z, weight = (stored(rng.normal(size=s)) for s in ((2, 3, 24), (2, 3, 24), (24,)))
    maps = [Linear(stored(rng.normal(size=(7, 24)))), Linear(stored(rng.normal(size=(7, 5))), stored(rng.normal(size=7)))]
    maps[1] = replace(maps[1], down=stored(rng.normal(size=(5, 24))))
    for contract in (FP32, replace(FP32, io="bf16", dot="bf16")):
        pairs = [error_bounds.exact(a, contract) for a in (x, z)]
        for sums in SUMS:
            machine = Machine(contract, sums)
            for m in maps:
                assert np.allclose(error_bounds.linear(pairs[0], m).value, m.apply(x))
                assert used(machine.linear(low(x), m), error_bounds.linear(pairs[0], m).store(contract.io)) <= 1
            for norm_first in (False, True):
                for gate in ("silu", "sigmoid"):
                    layer_norm = GatedNorm(weight, 1e-5, groups=3, norm_first=norm_first, gate=gate)
                    pair = error_bounds.gated(*pairs, layer_norm)
                    assert np.allclose(pair.value, gated(x, z, layer_norm))
                    assert used(machine.gated(low(x), low(z), layer_norm), pair) <= 1
            pair = error_bounds.norm(pairs[0], Norm(weight))
            assert np.allclose(pair.value, rms(x, Norm(weight)))
            assert used(machine.rms(low(x), weight, 1e-6), pair) <= 1


@pytest.mark.parametrize("size", [1.0, 20.0])
def test_attention_in_float32_stays_within_its_bound(size: float) -> None:
    """Plain, and online over blocks; with small and with large scores."""
    rng, machine = np.random.default_rng(10), Machine(FP32)
    q, k, v = (stored(rng.normal(size=s) * size) for s in ((2, 5, 4, 8), (2, 9, 2, 8), (2, 9, 2, 8)))
    seen = np.tri(5, 9, 4, dtype=bool)[None].repeat(2, axis=0)
    pairs = [error_bounds.exact(a, FP32) for a in (q, k, v)]
    state = attention.KVState(k[:, :4], v[:, :4], np.array([4, 4]))
    ref, _ = attention.scan(state, attention.AttentionWindow(q, k[:, 4:], v[:, 4:]), attention.AttentionParams())
    plain = error_bounds.attention(*pairs, seen, 8**-0.5)
    assert np.allclose(plain.value, ref, rtol=1e-12)
    k32, v32 = (np.repeat(low(a), 2, axis=2).transpose(0, 2, 1, 3) for a in (k, v))
    s = machine.dot(low(q).transpose(0, 2, 1, 3)[:, :, :, None], k32[:, :, None]) * F32(8**-0.5)
    s = np.where(seen[:, None], s, F32(-np.inf))
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    got = machine.dot(p[:, :, :, None], v32.swapaxes(-1, -2)[:, :, None]) / machine.sum(p)[..., None]
    assert used(got.transpose(0, 2, 1, 3), plain) <= 1
    online = error_bounds.attention(*pairs, seen, 8**-0.5, blocks=3)
    assert used(_online(s, v32).transpose(0, 2, 1, 3), online) <= 1
    bf16 = rounded(p, "bf16")
    got = machine.dot(bf16[:, :, :, None], v32.swapaxes(-1, -2)[:, :, None]) / machine.sum(p)[..., None]
    assert (used(got.transpose(0, 2, 1, 3), plain) > 1) == (size == 1)  # of large scores the exponents are as wrong


def _online(s: Any, v: Any) -> Any:
    """Softmax by blocks of three keys, the sums rescaled at each."""
    best, total, read = np.full(s.shape[:-1], F32(-np.inf)), np.zeros(s.shape[:-1], F32), np.zeros((*s.shape[:-1], 8), F32)
    for start in range(0, s.shape[-1], 3):
        part = s[..., start : start + 3]
        higher = np.maximum(best, part.max(axis=-1))
        safe = np.where(np.isfinite(higher), higher, F32(0))
        scale, p = np.exp(best - safe), np.exp(part - safe[..., None])
        total = total * scale + p.sum(axis=-1)
        read = read * scale[..., None] + p @ v[:, :, start : start + 3]
        best = higher
    return read / total[..., None]


# ------------------------------------------------------------------------------------------------------------ comparison


def test_a_signalling_nan_passes_as_little_and_warns_of_nothing() -> None:
    left = np.array([0x7F800001], dtype=np.uint32).view(np.float32)
    assert error_bounds.compare(left, np.zeros(1), np.ones(1)).utilisation == np.inf


def test_nan_never_passes_a_comparison() -> None:
    ref, bound = np.array([1.0, 2.0]), np.array([10.0, 10.0])
    for bad in (np.nan, np.inf, -np.inf):
        result = error_bounds.compare(np.array([1.0, bad]), ref, bound)
        assert not result.passed
        assert result.worst == (1,)
        assert result.count == 1
        refused(ParameterError, "oracle's value is not finite", error_bounds.compare, ref, np.array([bad, 1.0]), bound)
    for bad in (np.nan, np.inf):
        refused(ParameterError, "the bound is not finite", error_bounds.compare, ref, ref, np.array([1.0, bad]))
    refused(ParameterError, "at least 0", error_bounds.compare, ref, ref, np.array([1.0, -1.0]))


def test_a_bound_of_zero_demands_equality_and_shapes_must_match() -> None:
    ref, zero = np.array([[1.0, 2.0]]), np.zeros((1, 2))
    assert error_bounds.compare(ref, ref, zero).utilisation == 0
    assert error_bounds.compare(np.nextafter(ref, 9), ref, zero).utilisation == np.inf
    result = error_bounds.compare(np.array([[1.0, 2.5]]), ref, np.array([[1.0, 0.25]]))
    assert (result.utilisation, result.worst, result.error, result.bound, result.count) == (2.0, (0, 1), 0.5, 0.25, 1)
    assert str(result) == "utilisation 2 (error 0.5, bound 0.25) at [0, 1], 1 of 2 above their bound"
    for shapes in (((1, 2), (2,), (1, 2)), ((1, 2), (1, 2), (1,)), ((2,), (1, 2), (1, 2))):
        refused(ShapeMismatch, "have shapes", error_bounds.compare, *(np.zeros(shape) for shape in shapes))


# ----------------------------------------------------------------------------- float64 against its own bound: recurrences


of_every = pytest.mark.parametrize("kind", ALL)


@of_every
@quick
@given(st.data(), st.integers(1, 13), st.booleans())
def test_chunked_and_tree_forms_equal_the_recurrence_within_both_bounds(
    kind: str, data: st.DataObject, chunk: int, no_ops: bool
) -> None:
    """With dead tokens, too: a row without a live token has bound 0."""
    c = data.draw(drawn(kind))
    bounds, live = c.recurrence.bounds, None
    if no_ops:
        live = c.live()
        live[0] = False
    y, S_next = c.scan(live)
    y_bound, S_bound = bounds.scan(c.S, c.window, c.params, FLOAT64, live)
    assert within(y_bound.value, y, y_bound, y_bound)  # the pairs hold the oracle's values
    assert within(S_bound.value, S_next, S_bound, S_bound)
    y_chunked, S_chunked = c.chunks(chunk, live)
    y_other, S_other = bounds.scan(c.S, c.window, c.params, replace(FLOAT64, order="chunked", chunk=chunk), live)
    assert within(y_chunked, y, y_bound, y_other)
    assert within(S_chunked, S_next, S_bound, S_other)
    if live is not None:
        assert not S_bound.error[0].any()
        assert not y_bound.error[~live].any()
        return
    mask = np.broadcast_to(np.tri(c.tokens, dtype=bool), (len(c.S), c.tokens, c.tokens)).copy()
    y_tree = bounds.tree(c.S, c.window, mask, c.params, FLOAT64)
    assert within(c.tree(mask), y, y_bound, y_tree)
    parents = np.array([[-1, *(c.rng.integers(0, i) for i in range(1, c.tokens))]] * len(c.S))
    y_tree = bounds.tree(c.S, c.window, tree.ancestors(parents), c.params, FLOAT64)
    assert within(c.tree(tree.ancestors(parents)), c.along(tree.ancestors(parents)), y_tree, y_tree)


def test_the_window_of_a_convolution_has_bound_zero() -> None:
    """Inputs, moved and never computed with."""
    c = case("conv", 4, Sizes())
    assert not error_bounds.conv.scan(c.S, c.window, c.params, FLOAT64, c.live())[1].error.any()


@pytest.mark.parametrize("kind", DECAYING)
@each_family
def test_what_the_inputs_are_wrong_by_reaches_outputs_and_state(kind: str, family: Family) -> None:
    """Inputs and state moved to the ends of their intervals: what comes out lies within the bound, in every order."""
    c = case(kind, 11, Sizes(t=5), family)
    rng, bounds = np.random.default_rng(12), c.recurrence.bounds
    names = [f.name for f in fields(c.window) if getattr(c.window, f.name) is not None]
    inexact = {n: 1e-6 * np.abs(getattr(c.window, n)) for n in names} | {"S": 1e-6 * np.abs(c.S)}
    mask = np.broadcast_to(np.tri(5, dtype=bool), (2, 5, 5)).copy()
    orders = [replace(FLOAT64, order=o, chunk=2) for o in ("sequential", "chunked", "output_only")]
    limits = [bounds.scan(c.S, c.window, c.params, order, None, inexact) for order in orders]
    limits.append((bounds.tree(c.S, c.window, mask, c.params, FLOAT64, inexact), limits[0][1]))
    worst = 0.0
    for _ in range(20):
        moved = {n: inexact[n] * rng.choice([-1.0, 1.0], size=inexact[n].shape) for n in inexact}
        shifted = replace(c.window, **{n: getattr(c.window, n) + moved[n] for n in names})
        y, S_next = c.of(shifted)._replace(S=c.S + moved["S"]).scan()
        for y_bound, S_bound in limits:
            worst = max(worst, used(y, y_bound), used(S_next, S_bound))
    assert 0.01 < worst <= 1
    refused(ParameterError, "not inputs here", bounds.scan, c.S, c.window, c.params, FLOAT64, None, {"nothing": c.S})


@pytest.mark.parametrize("kind", DECAYING)
def test_planted_bound_of_another_order_is_exceeded(kind: str) -> None:
    """Beside strong decays running sums lose what the token-by-token bound does not allow: the order is no formality."""
    worst, chunked = 0.0, replace(FP32, order="chunked")
    for seed in range(6):
        c = case(kind, seed, Sizes(t=32, n=16, k=16, h=9), "hard")
        arguments = [stored(a) for a in (c.S, c.window, c.params)]
        got = getattr(Machine(chunked, variant=1), kind)(*arguments)
        right, wrong = (c.recurrence.bounds.scan(*arguments, contract) for contract in (chunked, FP32))
        assert max(map(used, got, right)) <= 1
        worst = max(worst, *map(used, got, wrong))
    if kind != "selective":  # the machine's associative scan has no running sums
        assert worst > 1
