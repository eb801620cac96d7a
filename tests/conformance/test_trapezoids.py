"""Each fault planted in Mamba-3 fails the operation that it is in, by values, and a right one passes there."""

from typing import Any

import pytest

from conformance.faults.fault import Fault, single
from conformance.faults.recurrences.short_convolutions import AGAIN, Rolled
from conformance.faults.recurrences.trapezoids import FAULTS, Rule
from conformance.faults.rollback import pieces
from conformance.judge.verdict import judge
from conformance.meta import jobs
from ssmspec_ref import mamba3
from ssmspec_ref.contract import FLOAT64, Limits, Subject, Verdict
from ssmspec_ref.mamba3 import tree
from ssmspec_ref.shapes import Array


class RollsBack(Rolled):
    """Right: all four pieces are those of the accepted tokens."""

    def columns(self, kept: Array, whole: Array, rejected: Array) -> Array:
        return kept


def unchanged(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """Right: the rule of which each fault changes one part."""
    return Rule()(S, window, params)


RIGHT: dict[str, Any] = {
    "mamba3.scan": unchanged,
    "mamba3.scan_masked": mamba3.scan,
    "mamba3.verify_tree": tree.scan,
    "mamba3.verify_snapshots": RollsBack,
}


def failed(subject: Subject, operation: str) -> list[tuple[str, str]]:
    found = ((job, judge(job.specification, job.capability, job.case)) for job in jobs(subject, operation, "smoke"))
    return [(job.identity, said.kind) for job, said in found if said.verdict is not Verdict.PASS]


@pytest.mark.parametrize("fault", [*FAULTS, *pieces.FAULTS], ids=lambda fault: fault.name)
def test_a_planted_fault_fails_by_values(fault: Fault) -> None:
    found = failed(fault.subject, fault.operation)
    assert found, "no case of the smallest tier shows it"
    assert {kind for _, kind in found} == {"bound"}


@pytest.mark.parametrize("operation", RIGHT)
def test_what_is_right_passes_there(operation: str) -> None:
    limits = AGAIN if operation.endswith("snapshots") else Limits()
    assert not failed(single(operation, RIGHT[operation], FLOAT64, limits), operation)
