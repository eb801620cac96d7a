"""Scalar functions against 60 decimal digits."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from ssmspec_ref import functions

SMALLEST_NORMAL = Decimal(float(np.finfo(np.float64).smallest_normal))


def exact(name: str, x: float) -> Decimal:
    with localcontext(prec=400) as context:  # 1 + exp(-800) needs 350 digits before its logarithm has 50
        e = Decimal(x).exp(context)
        match name:
            case "sigmoid":
                return e / (1 + e)
            case "softplus":
                return (1 + e).ln(context)
            case _:
                return Decimal(x) * e / (1 + e)


def error(name: str, x: float, got: float) -> float:
    """Relative; where exp(x) is below the smallest normal number, relative to that, since digits run out there."""
    with localcontext(prec=60):
        true = exact(name, x)
        floor = SMALLEST_NORMAL * (max(1, abs(Decimal(x))) if name == "silu" else 1)
        return float(abs(Decimal(got) - true) / max(abs(true), floor))


POINTS = np.concatenate(
    [
        [0.0, -0.0, 1e-300, -1e-300, 1e-17, -1e-17, 20.0, -20.0, 36.7, -36.7, 708.3, -708.3, 745.2, -745.2, 800.0, -800.0],
        np.random.default_rng(0).uniform(-800, 800, 25),
        np.random.default_rng(1).uniform(-40, 40, 60),
        np.random.default_rng(2).normal(size=20),
    ]
)


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "silu"])
def test_scalar_functions_keep_their_digits_up_to_800_and_where_they_are_tiny(name: str) -> None:
    got = getattr(functions, name)(POINTS)
    worst = max(error(name, float(x), float(y)) for x, y in zip(POINTS, got, strict=True))
    # exp and log1p are within 1 ulp = 2 u in NumPy, and at most four more roundings follow: 6 u = 6.7e-16.
    assert worst <= 1e-15


WRONG = {
    "sigmoid": lambda x: np.exp(-np.logaddexp(0.0, -x)),  # the error of the exponent is multiplied by |x|
    "softplus": lambda x: np.log(np.exp(np.minimum(x, 700.0)) + 1.0),  # 0 below -37, as in selective_state_update
    "silu": lambda x: x / (1.0 + np.exp(-np.minimum(x, 20.0))),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("ignore:overflow")
def test_planted_careless_functions_are_caught(name: str) -> None:
    got = WRONG[name](POINTS)
    worst = max(error(name, float(x), float(y)) for x, y in zip(POINTS, got, strict=True))
    assert worst > 1e-15


def test_functions_saturate_at_infinity_and_pass_nan_on() -> None:
    x = np.array([-np.inf, np.inf])
    assert functions.sigmoid(x).tolist() == [0.0, 1.0]
    assert functions.softplus(x).tolist() == [0.0, np.inf]
    assert np.isnan(functions.sigmoid(np.array(np.nan)))
