"""The kernels' softplus, the log1p that it is made of, cosine and sine, against float64 within the declared contract; planted
faults."""

from types import ModuleType

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from ssmspec_kernels.contract import CONTRACT
from ssmspec_kernels.mamba3 import mamba3_inputs
from ssmspec_kernels.shared import functions
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.error_bounds.functions import cos, sin
from ssmspec_ref.shapes import Array
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import check_within, doubles

BLOCK = 4096


@triton.jit
def _apply_kernel(x, y, count, F: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, F(tl.load(x + i, mask=i < count, other=0.0)), mask=i < count)


def applied(function: object, x: Array) -> Array:
    """The function of every x, which float32 holds, by a kernel."""
    given = torch.from_numpy(x).float()
    y = torch.full_like(given, float("nan"))
    _apply_kernel[(triton.cdiv(len(x), BLOCK),)](given, y, len(x), F=function, BLOCK=BLOCK)
    return doubles(y)


@triton.jit
def _turned_kernel(angle, c, s, count, F: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cosine, sine = F(tl.load(angle + i, mask=i < count, other=0.0))
    tl.store(c + i, cosine, mask=i < count)
    tl.store(s + i, sine, mask=i < count)


def parts() -> Array:
    """e in [0, 1]: around the first 2000 places where 1 + e rounds to the next number, and 2^16 in every binade."""
    turn = (np.arange(2000) + 0.5) * 2.0**-23
    near = np.concatenate([turn, np.nextafter(turn, 0, dtype=np.float32), np.nextafter(turn, 1, dtype=np.float32)])
    spread = [np.linspace(2.0**k, 2.0 ** (k + 1), 2**16, endpoint=False) for k in range(-27, 0)]
    return np.concatenate([[0.0, 2.0**-126, 1.0], near, *spread]).astype(np.float32).astype(float)


def arguments() -> Array:
    return np.concatenate([np.linspace(-100, 100, 400001), np.linspace(-1, 1, 20001)]).astype(np.float32).astype(float)


def check(module: ModuleType, function: str) -> None:
    if function == "log1p":
        e = parts()
        value = np.log1p(e)
        assert (np.abs(applied(module.log1p, e) - value) <= CONTRACT.function_ulp * 2.0**-23 * value).all()
    else:
        x = arguments()
        check_within(applied(module.softplus, x), eb.softplus(eb.exact(x, CONTRACT)))


def test_log1p_is_wrong_by_no_more_than_the_contract_allows_a_function() -> None:
    check(functions, "log1p")


def test_softplus_lies_within_the_bound_of_the_contract() -> None:
    check(functions, "softplus")


def test_softplus_of_what_is_no_number_or_infinite() -> None:
    x = np.array([np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(applied(functions.softplus, x), [np.inf, 0.0, np.nan])


def check_turned(module: ModuleType) -> None:
    """Angles of one turn, those where a quarter ends among them: there the last terms of both series count most."""
    ends = (2 * np.arange(8) + 1) * np.pi / 4
    angle = np.concatenate([np.linspace(0.0, 2 * np.pi, 2**16), *(ends + k * 2.0**-22 for k in range(-8, 9))])
    given = torch.from_numpy(angle[angle < 2 * np.pi]).float()
    c, s = torch.full_like(given, float("nan")), torch.full_like(given, float("nan"))
    _turned_kernel[(triton.cdiv(len(given), BLOCK),)](given, c, s, len(given), F=module.turned_by, BLOCK=BLOCK)
    exact = eb.exact(doubles(given), CONTRACT)
    check_within(doubles(c), cos(exact))
    check_within(doubles(s), sin(exact))


def test_cosine_and_sine_lie_within_the_bound_of_the_contract() -> None:
    check_turned(mamba3_inputs)


TURNED = ["(1 / 362880)", "(-1 / 5040", "(1 / 120", "(1 / 40320", "- quarter * (TURN_REST / 4)", "(n == 1) | (n == 2)"]


@pytest.mark.parametrize("old", TURNED)
def test_a_planted_fault_of_cosine_and_sine_is_caught(old: str) -> None:
    new = old.replace("1 /", "2 /") if "1 /" in old else old.replace("-", "+").replace("2", "3")
    with pytest.raises(AssertionError):
        check_turned(mutated(mamba3_inputs, old, new))


EIGHT = "(1.0 + 8 * 2.0**-23)"

FAULTS = [
    ("log1p", "tl.log(w) + (e - (w - 1.0))", "tl.log(w)"),
    ("log1p", "tl.log(w) + (e - (w - 1.0))", "tl.log(w) - (e - (w - 1.0))"),
    ("log1p", "tl.log(w) + (e - (w - 1.0))", "tl.log2(w) * 0.6931"),
    ("log1p", "tl.log(w) + (e - (w - 1.0))", f"(tl.log(w) + (e - (w - 1.0))) * {EIGHT}"),
    ("log1p", "tl.log(w) + (e - (w - 1.0))", "tl.where(w == 1.0, 0.0, tl.log(w) + (e - (w - 1.0)))"),
    ("softplus", "return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))", "return log1p(tl.exp(-tl.abs(x)))"),
    (
        "softplus",
        "return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))",
        f"return (tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))) * {EIGHT}",
    ),
    (
        "softplus",
        "return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))",
        "return tl.where(x > 10.0, x, tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x))))",
    ),
]


@pytest.mark.parametrize(("function", "old", "new"), FAULTS)
def test_planted_faults_are_caught(function: str, old: str, new: str) -> None:
    assert caught(mutated(functions, old, new), check, [function])
