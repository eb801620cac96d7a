"""States that lose bits: two derivations of every format, torch as a third, exact means, bounds that hold."""

from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest

from ssmspec_ref import delta, error_bounds, state_format
from ssmspec_ref.contract import LARGEST_CODE, Feedback, NumericContract, Rounding, StateStorage
from ssmspec_ref.delta import DeltaParams, DeltaWindow
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.error_bounds.stored_state import stored_state
from ssmspec_ref.errors import ParameterError, ShapeMismatch
from ssmspec_ref.shapes import Array
from ssmspec_ref.state_format import enumerated

from .refusals import refused

torch = pytest.importorskip("torch")
SMALL: tuple[StateStorage, ...] = ("fp8_e4m3", "fp8_e5m2", "fp16", "bf16", "int8", "int16")
TORCH = {
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
INT8 = NumericContract(state="int8", state_scale="row")


def points(form: str) -> Array:
    """Every number of a format, the middle between two, and numbers between."""
    every, _ = enumerated.numbers(form)
    rng = np.random.default_rng(1)
    between = every[:-1] + (every[1:] - every[:-1]) * rng.random(len(every) - 1)
    beyond = np.array([2 * every[-1], -2 * every[-1]]) if form in LARGEST_CODE else np.zeros(0)
    return np.concatenate([every, every[:-1] + (every[1:] - every[:-1]) / 2, between, beyond])


@pytest.mark.parametrize("form", SMALL)
def test_rounding_by_arithmetic_is_rounding_by_enumeration(form: str) -> None:
    x = points(form)
    assert np.array_equal(state_format.nearest(x, form), enumerated.nearest(x, form))
    coins = np.random.default_rng(2).random(x.shape)
    below, above = state_format.neighbours(x, form)
    f = np.divide(state_format.within(x, form) - below, above - below, out=np.zeros(x.shape), where=above > below)
    assert np.array_equal(np.where(coins < f, above, below), enumerated.drawn(x, form, coins))


@pytest.mark.parametrize("form", TORCH)
def test_rounding_is_that_of_torch(form: str) -> None:
    every, _ = enumerated.numbers(form)
    x = points(form).astype(np.float32).astype(np.float64)
    x = x[np.abs(x) <= every[-1]]
    assert np.array_equal(torch.tensor(x).float().to(TORCH[form]).double().numpy(), state_format.nearest(x, form))


@pytest.mark.parametrize(
    ("form", "count", "largest"), [("fp8_e4m3", 253, 448.0), ("fp8_e5m2", 247, 57344.0), ("int8", 255, 127.0)]
)
def test_a_format_has_as_many_numbers_as_its_bits_give(form: str, count: int, largest: float) -> None:
    every, _ = enumerated.numbers(form)
    assert (len(every), every[-1], every[0]) == (count, largest, -largest)


def test_the_numbers_of_a_wide_format_are_not_listed() -> None:
    refused(ParameterError, "at most 16 bits", enumerated.numbers, "fp32")


@pytest.mark.parametrize("form", SMALL)
def test_the_mean_of_rounding_at_random_is_the_value(form: str) -> None:
    """Over the coins (k + 1/2) / 1024, for every x: exactly, up to a 2048th of a step."""
    x = np.random.default_rng(4).standard_normal(50) * (100 if form.startswith("int") else 1)
    contract = NumericContract(state=form, state_scale="row" if form in LARGEST_CODE else None, state_rounding="stochastic")  # type: ignore[arg-type]
    s = state_format.scales(x, contract)
    coins = (np.arange(1024) + 0.5) / 1024
    kept = [state_format.keep(x, contract, coins=np.full(x.shape, c)).value for c in coins]
    assert np.all(np.abs(np.mean(kept, axis=0) - x) <= s * state_format.step(x / s, form) / 1024)


def test_every_block_has_its_own_scale_and_a_block_of_zeros_has_one() -> None:
    v = np.array([[1.0, -2.0, 0.0, 0.0, 8.0]])
    kept = state_format.keep(v, NumericContract(state="int8", state_scale=2))
    assert np.allclose(kept.scales, [[2 / 127, 2 / 127, 1, 1, 8 / 127]], rtol=2.0**-23)
    assert kept.codes.tolist() == [[64.0, -127.0, 0.0, 0.0, 127.0]]
    along = state_format.keep(np.stack([v, v / 2], axis=2), NumericContract(state="int8", state_scale="row"), axis=1)
    assert np.allclose(along.scales, np.array([8 / 127, 4 / 127]))


@pytest.mark.parametrize(("axes", "axis"), [("b h p n", -1), ("b d n", -1), ("b h k v", -2)])
def test_blocks_lie_along_the_axis_over_which_outputs_sum(axes: str, axis: int) -> None:
    assert state_format.axis_of(axes) == axis


def test_coins_belong_to_rounding_at_random() -> None:
    v = np.ones((2, 3))
    drawn = NumericContract(state="int8", state_scale="row", state_rounding="stochastic")
    refused(ParameterError, "coins", state_format.keep, v, drawn)
    refused(ParameterError, "coins", state_format.keep, v, INT8, coins=v)
    refused(ShapeMismatch, "one for each element", state_format.keep, v, drawn, coins=v[:1])


def kept_in_fp32(v: Array, contract: NumericContract, coins: Array, reciprocal: bool) -> Array:
    """An implementation in float32: the scale by one division, or as the reciprocal of C / m, by which x is multiplied."""
    g = v.astype(np.float32)
    s, x = np.ones_like(g), g
    if contract.state_scale is not None:
        m = state_format.largest(np.abs(g), contract)
        top = np.float32(LARGEST_CODE[contract.state])
        s = np.where(m > 0, m, top) / top
        x = g / s
        if reciprocal:
            encode = top / np.where(m > 0, m, top)
            s, x = np.float32(1) / encode, g * encode
    x = state_format.within(x.astype(np.float64), contract.state)
    below, above = state_format.neighbours(x, contract.state)
    q = state_format.nearest(x, contract.state)
    q = np.where(coins < 0.5, below, above) if contract.state_rounding == "stochastic" else q
    value = (s * q.astype(np.float32)).astype(np.float64)
    if contract.error_feedback is not None:
        value = value + state_format._residual(g.astype(np.float64) - value, s.astype(np.float64), contract)
    return value


def contracts() -> list[NumericContract]:
    """Every combination that a contract may have."""
    found = []
    for state in SMALL:
        for scale in (None, "row", 3):
            for rounding in get_args(Rounding):
                for feedback in (*get_args(get_args(Feedback)[0]), None):
                    given: dict[str, Any] = {"state": state, "state_scale": scale, "state_rounding": rounding}
                    try:
                        found.append(NumericContract(**given, error_feedback=feedback))
                    except ParameterError:
                        continue
    return found


@pytest.mark.parametrize("contract", contracts(), ids=str)
def test_a_state_kept_in_fp32_arithmetic_stays_within_its_bound_and_reaches_a_third_of_it(contract: NumericContract) -> None:
    top = 0.0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        v = rng.standard_normal((3, 5, 8)) * 10 ** rng.uniform(-3, 1, (3, 5, 1))
        v[0, 0] = 0.0
        e = np.abs(v) * 2.0**-22
        came = kept_in_fp32(v + e * rng.uniform(-1, 1, v.shape), contract, rng.random(v.shape), seed % 2 == 0)
        bound = stored_state(Approx(v, e, contract)).error
        assert np.all(np.abs(came - v) <= bound)
        top = max(top, float(np.max(np.abs(came - v)[bound > 0] / bound[bound > 0])))
    assert top > (0.05 if contract.error_feedback == "fp32" else 0.33)


def test_a_bound_adds_to_the_error_that_a_state_carries() -> None:
    """What rounding adds does not fall as the error grows, so that bounds which propagate it otherwise may take that part."""
    v = np.random.default_rng(5).standard_normal((4, 3, 8))
    for contract in contracts():
        added = [stored_state(Approx(v, np.full(v.shape, e), contract)).error - e for e in (0.0, 1e-6, 1e-3, 1e-2)]
        assert all(np.all(later >= earlier * (1 - 1e-9)) for earlier, later in pairwise(added))


@pytest.mark.parametrize(
    "contract", [INT8, NumericContract(state="fp8_e4m3", state_scale="row", state_rounding="stochastic")], ids=str
)
@pytest.mark.parametrize("seed", range(5))
def test_thirty_steps_of_the_delta_rule_with_a_stored_state_stay_within_their_bound(
    contract: NumericContract, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    b, t, h, k, v = 2, 30, 2, 4, 5
    window = DeltaWindow(
        q=rng.standard_normal((b, t, h, k)),
        k=rng.standard_normal((b, t, h, k)),
        v=rng.standard_normal((b, t, h, v)),
        g=-0.05 * rng.random((b, t, h)),
        beta=rng.random((b, t, h)),
    )
    params = DeltaParams()
    S = held = rng.standard_normal((b, h, k, v))
    _, exact = delta.states(S, window, params)
    stored_each = NumericContract(**{**vars(contract), "stored_every_token": True})
    _, bound = error_bounds.delta.states(S, window, params, stored_each)
    for token in range(t):
        coins = rng.random(held.shape) if contract.state_rounding == "stochastic" else None
        _, held = delta.step(held, window.token(token), params)
        held = state_format.keep(held, contract, -2, coins).value
        assert np.all(np.abs(held - exact[:, token]) <= bound.error[:, token])


def test_a_float_format_without_scales_has_no_bound_where_it_overflows() -> None:
    bound = stored_state(Approx(np.full((1, 2), 500.0), np.zeros((1, 2)), NumericContract(state="fp8_e4m3"))).error
    assert np.isinf(bound).all()
