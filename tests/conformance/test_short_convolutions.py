"""Faults planted in a short convolution or in Mamba-3 fail the operation that they are in, by values; right ones pass."""

from typing import Any

import pytest

from conformance.adapters.reference_parts.windows import Bare
from conformance.faults.fault import single
from conformance.faults.recurrences import short_convolutions, trapezoids
from conformance.faults.recurrences.short_convolutions import AGAIN, Rolled
from conformance.faults.rollback import pieces
from conformance.meta import jobs
from ssmspec_ref import mamba3, shortconv
from ssmspec_ref.contract import FLOAT64, Limits, Subject, Verdict
from ssmspec_ref.mamba3 import tree as mamba3_tree
from ssmspec_ref.shapes import Array
from ssmspec_ref.shortconv import tree

from .judging import of


class RollsBack(Rolled):
    """Right: columns, or all four pieces, of the accepted tokens."""

    def columns(self, kept: Array, whole: Array, rejected: Array) -> Array:
        return kept


RIGHT: dict[str, Any] = {
    "shortconv.scan": shortconv.scan,
    "shortconv.scan_masked": shortconv.scan,
    "shortconv.verify_tree": tree.scan,
    "shortconv.verify_snapshots": RollsBack,
    "mamba3.scan": lambda *given: trapezoids.Rule()(*given),
    "mamba3.scan_masked": mamba3.scan,
    "mamba3.verify_tree": mamba3_tree.scan,
    "mamba3.verify_snapshots": RollsBack,
}
"""For `mamba3.scan` the rule of which each fault changes one part."""
FAULTS = *short_convolutions.FAULTS, *trapezoids.FAULTS, *pieces.FAULTS


def failed(subject: Subject, operation: str) -> list[str]:
    """How each case of the smallest tier fails that does not pass."""
    found = map(of, jobs(subject, operation, "smoke"))
    return [said.kind for said in found if said.verdict is not Verdict.PASS]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.name}-{fault.operation}")
def test_a_planted_fault_fails_by_values(fault: Any) -> None:
    found = failed(fault.subject, fault.operation)
    assert len(found) > fault.operation.startswith("shortconv"), "no case of the smallest tier shows it, or one by luck"
    assert set(found) == {"bound"}


@pytest.mark.parametrize("operation", RIGHT)
def test_what_is_right_passes_there(operation: str) -> None:
    limits = AGAIN if operation.endswith("snapshots") else Limits()
    assert not failed(single(operation, RIGHT[operation], FLOAT64, limits), operation)
    assert issubclass(Rolled, Bare)
