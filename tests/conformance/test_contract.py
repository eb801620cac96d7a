"""What a contract declares can be read, and what an adapter declares is run or named."""

from dataclasses import fields, replace
from typing import Any

import pytest

from conformance.errors import UnknownOperation
from ssmspec_ref.approximation import Approximation
from ssmspec_ref.contract import FLOAT64, Capability, Limits, NumericContract
from ssmspec_ref.errors import ParameterError

from .judging import planned

WIDER: dict[str, Any] = {
    "state": "bf16",
    "io": "bf16",
    "accumulate": "bf16",
    "dot": "tf32",
    "order": "chunked",
    "chunk": 64,
    "ring": "bf16",
    "function_ulp": 1e9,
    "exp": "ex2",
    "softplus": "log",
    "softplus_threshold": -5.0,
    "truncates": True,
    "ftz": True,
    "approximations": (Approximation("tanh", 1e-4, "table"),),
}
"""A value of each field that widens the bound."""
OF_CODES = {"state_scale": 64, "state_rounding": "stochastic", "error_feedback": "int4"}
"""The same of the fields that only a state of codes has."""


def test_every_field_that_widens_the_bound_is_read_in_the_contract() -> None:
    assert {field.name for field in fields(NumericContract)} == {*WIDER, *OF_CODES, "stored_every_token"}
    plain = str(NumericContract())
    for name, value in WIDER.items():
        changed: Any = replace(NumericContract(), **{name: value})
        assert str(changed) != plain, name
    for name, value in OF_CODES.items():
        codes = NumericContract(state="int8", state_scale="row")
        of_codes: Any = replace(codes, **{name: value})
        assert str(of_codes) != str(codes), name
    low = NumericContract(state="bf16")
    assert str(replace(low, stored_every_token=True)) != str(low)
    everything: Any = replace(NumericContract(), **WIDER, stored_every_token=True)
    assert "ulp=1e+09" in str(everything)
    assert "softplus above -5 is x" in str(everything)


def test_what_widens_nothing_is_left_out() -> None:
    assert str(NumericContract()) == "fp32/sequential"
    assert str(replace(NumericContract(), function_ulp=1.0, softplus_threshold=float("inf"))) == "fp32/sequential"
    assert str(replace(FLOAT64, stored_every_token=True)) == "fp64/sequential"


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": "float32"},
        {"io": "fp8"},
        {"accumulate": None},
        {"dot": "fast"},
        {"order": "parallel"},
        {"ring": "int8"},
        {"exp": "exp2"},
        {"softplus": "log2"},
        {"softplus_threshold": float("nan")},
        {"function_ulp": float("nan")},
    ],
)
def test_a_contract_that_says_nothing_known_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r" is .*; "):
        NumericContract(**wrong)


def test_an_operation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownOperation, match=r"ssd\.scam"):
        planned({"ssd.scam": Capability(print, NumericContract())})


def test_an_operation_whose_limits_admit_no_case_is_unknown() -> None:
    jobs, left_out = planned({"ssd.scan": Capability(print, NumericContract(), Limits(sizes={"g": (4, 4), "h": (6, 6)}))})
    assert jobs == []
    (result,) = [r for r in left_out if r.operation == "ssd.scan"]
    assert (result.verdict, result.failing) == ("unknown", "limits")


def test_a_limits_reason_is_told_of_what_was_limited_only() -> None:
    limits = Limits({"z": ("off",)}, {"n": (1, 256)}, "the kernel has no such option")
    _, left_out = planned({"ssd.step": Capability(print, NumericContract(), limits)})
    (reason,) = [r.reason for r in left_out if r.operation == "ssd.step"]
    declared, unasked, captured = reason.split("; ")
    assert declared == "z=on, n outside 1..256 (the kernel has no such option)"
    assert unasked.startswith("slots=")
    assert unasked.endswith("(name them in the limits to opt in)")
    assert captured == "graph=replayed (give a Graph to opt in)"
