"""Each fault planted in a short convolution fails the operation that it is in, by values, and a right one passes there."""

from typing import Any

import pytest

from conformance.adapters.reference_parts.windows import Bare
from conformance.faults.fault import Fault, single
from conformance.faults.recurrences.short_convolutions import AGAIN, FAULTS, Rolled
from conformance.judge.verdict import judge
from conformance.meta import jobs
from ssmspec_ref import shortconv
from ssmspec_ref.contract import FLOAT64, Limits, Subject, Verdict
from ssmspec_ref.shapes import Array
from ssmspec_ref.shortconv import tree


class RollsBack(Rolled):
    """Right: the columns of the accepted tokens."""

    def columns(self, kept: Array, whole: Array, rejected: Array) -> Array:
        return kept


RIGHT: dict[str, Any] = {
    "shortconv.scan": shortconv.scan,
    "shortconv.scan_masked": shortconv.scan,
    "shortconv.verify_tree": tree.scan,
    "shortconv.verify_snapshots": RollsBack,
}


def failed(subject: Subject, operation: str) -> list[tuple[str, str]]:
    found = ((job, judge(job.specification, job.capability, job.case)) for job in jobs(subject, operation, "smoke"))
    return [(job.identity, said.kind) for job, said in found if said.verdict is not Verdict.PASS]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_fails_by_values(fault: Fault) -> None:
    found = failed(fault.subject, fault.operation)
    assert len(found) > 1, "caught by luck of a case"
    assert {kind for _, kind in found} == {"bound"}


@pytest.mark.parametrize("operation", RIGHT)
def test_what_is_right_passes_there(operation: str) -> None:
    limits = AGAIN if operation.endswith("snapshots") else Limits()
    assert not failed(single(operation, RIGHT[operation], FLOAT64, limits), operation)
    assert issubclass(Rolled, Bare)
