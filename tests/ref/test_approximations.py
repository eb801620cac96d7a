"""Functions with an absolute error: what is refused, and that bounds add it exactly where a function is evaluated."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from ssmspec_ref import error_bounds
from ssmspec_ref.approximation import FUNCTIONS, LARGEST_ERROR, Approximation, printed
from ssmspec_ref.contract import NumericContract, Order
from ssmspec_ref.error_bounds import arithmetic, functions
from ssmspec_ref.errors import ParameterError
from ssmspec_ref.shapes import Array
from tests.low_precision import F32, FP32, Machine, used

from .test_error_bounds_kills import faulty, make_case

D = 1e-4


def named(*names: str, error: float = D, low: float = -math.inf, high: float = math.inf) -> NumericContract:
    return replace(FP32, approximations=tuple(Approximation(name, error, "a test", low, high) for name in names))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"function": "cosh"}, r"function of an approximation is 'cosh'; give one of exp, softplus, sigmoid, silu, tanh"),
        ({"error": 1.1e-3}, r"error of the approximation of exp is 0\.0011; it must be above 0 and at most 0\.001"),
        ({"error": 0.0}, "error of the approximation of exp is 0"),
        ({"error": math.nan}, "error of the approximation of exp is nan"),
        ({"error": "small"}, "error of the approximation of exp is 'small'"),
        ({"error": True}, "error of the approximation of exp is True"),
        ({"source": ""}, "source of the approximation of exp is ''; say in a few words who promises the error"),
        ({"source": "  "}, "source of the approximation of exp"),
        ({"source": None}, "source of the approximation of exp is None"),
        ({"source": "two\nlines"}, "source of the approximation of exp .* give one line of at most 80"),
        ({"source": "x" * 81}, "source of the approximation of exp .* give one line of at most 80"),
        ({"low": math.nan}, "low of the approximation of exp is nan; give a number"),
        ({"high": "inf"}, "high of the approximation of exp is 'inf'; give a number"),
        ({"low": 2.0, "high": 2.0}, r"low of the approximation of exp is 2\.0; it must be below high, which is 2\.0"),
    ],
)
def test_what_is_no_approximation_is_refused_by_the_name_of_its_field(wrong: dict[str, Any], said: str) -> None:
    fields: Any = {"function": "exp", "error": D, "source": "a test"} | wrong
    with pytest.raises(ParameterError, match=said):
        Approximation(**fields)


@pytest.mark.parametrize("wrong", ["exp", [("exp", 1e-4, "a test")], None, {"exp": 1e-4}])
def test_a_contract_takes_a_list_of_approximations_only(wrong: Any) -> None:
    with pytest.raises(ParameterError, match=r"approximations is .*; give a list of Approximation"):
        NumericContract(approximations=wrong)


def test_a_contract_prints_function_error_range_and_source() -> None:
    table = Approximation("sigmoid", 3e-5, "table of 256 entries", -18, 18)
    several = NumericContract(approximations=[table, Approximation("exp", 1e-4, "https://example.org/exp")])  # type: ignore[arg-type]
    assert str(several) == (
        "fp32/sigmoid within 3e-05 in -18 .. 18 (table of 256 entries)/exp within 0.0001 (https://example.org/exp)/sequential"
    )
    assert printed(str(several)) == ["sigmoid within 3e-05 in -18 .. 18", "exp within 0.0001"]
    assert printed(str(NumericContract())) == []
    assert hash(several) == hash(replace(several))


TRUE: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "softplus": lambda x: np.logaddexp(0.0, x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}
X = np.linspace(-12, 6, 400)
"""Arguments that hold 0 not exactly."""
OF_E: dict[str, Callable[[Array, float], Array]] = {
    "sigmoid": lambda x, d: 1 / (1 + np.exp(-x) + d),
    "softplus": lambda x, d: np.log(1 + np.exp(x) + d),
    "silu": lambda x, d: x / (1 + np.exp(-x) + d),
    "tanh": lambda x, d: (1 - np.exp(-2 * x) - d) / (1 + np.exp(-2 * x) + d),
}
"""Functions made of an exp that is wrong by d."""


def bound(name: str, contract: NumericContract, error: float = 0.0) -> error_bounds.Approx:
    function = getattr(functions, name)
    pair: error_bounds.Approx = function(arithmetic.exact(X, contract, np.full(X.shape, error)))
    return pair


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_may_be_wrong_by_its_error_and_hardly_by_more(name: str) -> None:
    pair = bound(name, named(name))
    for sign in (1, -1):
        assert 0.9 < used(TRUE[name](X) + sign * D, pair) <= 1
        assert used(TRUE[name](X) + sign * 1.1 * D, pair) > 1
        assert used(TRUE[name](X) + sign * D, bound(name, FP32)) > 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_error_of_the_argument_and_of_the_function_add(name: str) -> None:
    pair = bound(name, named(name), 1e-3)
    for sign in (1, -1):
        assert used(TRUE[name](X + 1e-3) + sign * D, pair) <= 1
        assert used(TRUE[name](X - 1e-3) + sign * D, pair) <= 1


def test_an_error_of_the_sigmoid_counts_as_often_as_silu_takes_it() -> None:
    pair = bound("silu", named("sigmoid"))
    assert 0.9 < used(X * (TRUE["sigmoid"](X) + D), pair) <= 1
    assert used(X * (TRUE["sigmoid"](X) + 1.1 * D), pair) > 1
    by_tanh = (X.astype(F32) / 2) * (1 + np.tanh(X.astype(F32) / 2))  # z / 2 (1 + tanh(z / 2)), wrong by u |z|
    exact = arithmetic.exact(X.astype(F32).astype(float), FP32)
    assert used(by_tanh, functions.silu(exact)) > 1
    by_rounding = replace(exact, contract=named("sigmoid", error=2 * 2.0**-24))
    assert used(by_tanh, functions.silu(by_rounding)) <= 1


@pytest.mark.parametrize("name", OF_E)
def test_an_error_of_exp_reaches_what_is_made_of_it(name: str) -> None:
    pair = bound(name, named("exp"))
    for d in (D, -D):
        assert 0.2 < used(OF_E[name](X, d), pair) <= 1
    assert used(OF_E[name](X, 0.0) + 4 * D * np.maximum(1, np.abs(X)), pair) > 1
    assert used(OF_E[name](X, D), bound(name, FP32)) > 1


def test_outside_its_range_an_error_is_none_and_near_it_the_argument_decides() -> None:
    pair, plain = bound("exp", named("exp", low=-2.0, high=0.0)), bound("exp", FP32)
    within = (X >= -2) & (X <= 0)
    assert np.array_equal(pair.error != plain.error, within)
    near = bound("exp", named("exp", low=-2.0, high=0.0), 0.5)
    assert np.array_equal(near.error != bound("exp", FP32, 0.5).error, (X >= -2.5) & (X <= 0.5))
    twice = replace(FP32, approximations=(*named("exp").approximations, *named("exp", error=LARGEST_ERROR).approximations))
    assert np.allclose(bound("exp", twice).error - plain.error, LARGEST_ERROR), "the larger of two counts, not their sum"


def test_an_error_of_another_function_changes_no_bound() -> None:
    for name in FUNCTIONS:
        of_others = named("silu" if name == "tanh" else "tanh")
        assert np.array_equal(bound(name, FP32, 1e-6).error, bound(name, of_others, 1e-6).error)


@dataclass(frozen=True)
class Table(Machine):
    """A machine whose exp is wrong by up to D, one way or the other by the sign of a sine of its argument."""

    def exp(self, x: Any) -> Any:
        return super().exp(x) + F32(0.99 * D) * (np.sign(np.sin(1e3 * x)) if self.variant else F32(1)).astype(F32)


@pytest.mark.parametrize("kind", ["ssd", "selective", "delta", "delta_channel", "conv"])
def test_a_machine_with_a_table_of_exp_is_within_its_bound_and_not_within_that_of_an_accurate_exp(kind: str) -> None:
    orders: tuple[Order, ...] = ("sequential", "chunked", "output_only")
    for order in (*orders, *(("associative",) if kind in ("ssd", "selective") else ())):
        for seed in range(4):
            family: Any = ("gentle", "mamba")[seed % 2]
            case = make_case(kind, 21 + 5 * seed, family, replace(named("exp"), order=order, chunk=5))
            got = case.run(Table(case.contract, variant=seed // 2))
            assert case.utilisation(*got) <= 1, (order, family)
            assert replace(case, contract=replace(case.contract, approximations=())).utilisation(*got) > 1


@pytest.mark.parametrize("kind", ["ssd", "selective", "delta"])
def test_planted_faults_of_a_machine_are_caught_beside_the_largest_errors(kind: str) -> None:
    """With every function wrong by 1e-3 at once, the most that a contract can declare."""
    for fault in ("token lost", "token added", "rejected token in one channel", "stale head", "decay skipped once"):
        caught = []
        for seed in range(6):
            family: Any = ("gentle", "mamba", "hard")[seed % 3]
            case = make_case(kind, 40 + seed, family, named(*FUNCTIONS, error=LARGEST_ERROR))
            caught.append(case.utilisation(*faulty(case, fault, seed)) > 1)
        assert any(caught), fault
