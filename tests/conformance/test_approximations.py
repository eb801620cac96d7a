"""Functions with an absolute error in adapters and reports: what is printed, what a program sends, what is still caught."""

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from conformance.faults.catalogue import FAULTS
from conformance.faults.fault import Fault
from conformance.judge.verdict import judge
from conformance.meta import failing, jobs, tabled
from conformance.report.badge import badge
from conformance.report.matrix import matrix
from conformance.run.program import _capability
from ssmspec_ref import ssd
from ssmspec_ref.approximation import FUNCTIONS, LARGEST_ERROR, Approximation
from ssmspec_ref.contract import FLOAT64, Capability, Limits, NumericContract, Verdict
from ssmspec_ref.errors import ParameterError
from tests.reports import made, result

from .judging import SPECIFICATION, outcome

ROUGH = tuple(Approximation(name, LARGEST_ERROR, "the most that may be declared") for name in FUNCTIONS)
TANH = Approximation("sigmoid", 2.5e-4, "tanh.approx.f32, PTX manual")
PLACES = ("step", "scan", "scan_masked")
OF_VALUES = (
    *("NUMERIC", "GROUP-MAP", "VARIANT", "PAD-LEAK", "TRANSPOSE"),
    *("INDEX", "CHUNK", "INIT-DROP", "RULE", "SLOT-SCOPE"),
)
"""Classes whose faults a bound decides about; those of pools, calls and random numbers are compared bit for bit."""


def rough_silu(S: Any, token: Any, params: Any) -> Any:
    """SSD whose gate has a sigmoid that is 2e-4 too large."""
    y, S_next = ssd.step(S, token, params)
    if token.z is None:
        return y, S_next
    plain, _ = ssd.step(S, replace(token, z=None), params)
    return y + 2e-4 * plain * token.z, S_next


def test_a_rough_sigmoid_passes_as_declared_and_fails_otherwise() -> None:
    specification = SPECIFICATION["ssd.step"]
    gated = [case for case in specification.cases("smoke", Limits()) if case.options["z"] == "on"]
    assert gated
    verdicts = {
        contract: {judge(specification, Capability(rough_silu, contract), case).verdict for case in gated}
        for contract in (FLOAT64, replace(FLOAT64, approximations=(TANH,)))
    }
    assert list(verdicts.values()) == [{Verdict.FAIL}, {Verdict.PASS}]


def of_classes() -> Iterator[tuple[str, list[Fault]]]:
    """The planted faults of three recurrences by recurrence and bug class."""
    groups: dict[str, list[Fault]] = {}
    for fault in FAULTS:
        kind, _, operation = fault.operation.partition(".")
        if kind in ("ssd", "selective", "delta") and operation in PLACES and fault.bug_class in OF_VALUES:
            groups.setdefault(f"{kind}-{fault.bug_class}", []).append(fault)
    yield from groups.items()


@pytest.mark.parametrize("faults", [pytest.param(faults, id=name) for name, faults in of_classes()])
def test_of_every_class_a_fault_is_caught_beside_the_largest_errors(faults: list[Fault]) -> None:
    """All five functions may be wrong by 1e-3."""

    def caught(fault: Fault) -> bool:
        contract = replace(fault.capability.contract, approximations=ROUGH)
        own = replace(fault.subject, capabilities={fault.operation: replace(fault.capability, contract=contract)})
        every = jobs(own, fault.operation)
        small = tabled(every)
        return any(failing(job, 0) for job in (*small, *(job for job in every if job not in small)))

    assert any(caught(fault) for fault in faults)


def test_what_is_rough_is_printed_beside_the_cell_and_in_the_badge(tmp_path: Path) -> None:
    contract = NumericContract(approximations=(TANH,))
    lines = [result(0, contract=str(contract)), result(1, contract="fp32/sequential")]
    assert str(TANH) == "sigmoid within 0.00025 (tanh.approx.f32, PTX manual)"
    console = Console(file=StringIO(), width=200)
    console.print(matrix(lines, console))
    assert str(TANH) in console.file.getvalue()  # type: ignore[attr-defined]
    assert "2 of 2 pass, sigmoid within 0.00025" in badge(made(tmp_path / "rough", lines))
    assert "within" not in badge(made(tmp_path / "plain", lines[1:]))


def test_a_program_declares_it_in_its_line_of_json() -> None:
    told = {"function": "exp", "error": 1e-4, "source": "table", "low": "-inf", "high": 0}
    found = _capability(print, {"contract": {"approximations": [told]}}).contract.approximations
    assert found == (Approximation("exp", 1e-4, "table", high=0),)
    for wrong, said in (
        ([{**told, "error": 0.01}], "error of the approximation of exp"),
        ([{**told, "source": ""}], "source of the approximation of exp"),
        ({"exp": 1e-4}, "approximations is"),
    ):
        with pytest.raises(ParameterError, match=said):
            _capability(print, {"contract": {"approximations": wrong}})
    with pytest.raises(TypeError, match="an approximation is 3; it must be a JSON object"):
        _capability(print, {"contract": {"approximations": [3]}})


def test_a_run_says_that_a_narrower_contract_would_hold() -> None:
    """The reference declares a rough sigmoid that it does not have."""
    found = outcome({"ssd.step": Capability(ssd.step, replace(FLOAT64, approximations=(TANH,)))}, "standard")
    said = {name for one in found.results for name, holds in one.stricter.items() if holds}
    assert said == {"functions without an absolute error"}


def test_probabilities_have_no_bound_for_a_rough_exp() -> None:
    specification = SPECIFICATION["acceptance.process"]
    case = next(iter(specification.cases("smoke", Limits())))
    rough = NumericContract(approximations=(Approximation("exp", 1e-4, "a table"),))
    judged = judge(specification, Capability(lambda logits, *rest: (np.ones(logits.shape, np.float32),), rough), case)
    assert (judged.verdict, judged.kind) == (Verdict.UNKNOWN, "bound")
    assert "declare none for this operation" in judged.message
