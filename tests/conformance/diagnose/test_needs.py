"""What a failing case needs in order to pass is told only where no draw and no other failing case says otherwise."""

from typing import Any

import pytest

from conformance.cases import Case
from conformance.diagnose import probes
from conformance.faults.recurrences import arithmetic
from conformance.faults.recurrences.arithmetic import subject
from conformance.suite import find
from ssmspec_ref.contract import Capability
from ssmspec_ref.errors import EmptyWindow

SMALLEST = "ssd.scan/b1,t3,g1,h1,p1,n1/plain/gentle/s0"


def told(monkeypatch: pytest.MonkeyPatch, passes: Any, failing: tuple[Case, ...] = ()) -> str:
    specification, case = find(SMALLEST)

    class Judged:
        def __init__(self, verdict: Any) -> None:
            self.verdict = verdict

    def judged(specification: Any, capability: Capability, case: Case, other: int) -> Judged:
        return Judged(probes.Verdict.PASS if passes(case) else probes.Verdict.FAIL)

    monkeypatch.setattr(probes, "judge", judged)
    capability = subject(arithmetic.right).capabilities["ssd.scan_masked"]
    return probes.needs(specification, capability, case, failing)


def test_a_change_that_always_passes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, lambda case: case.options["D"] == "off") == "with D=off"


def test_a_change_that_passes_by_the_luck_of_a_seed_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, lambda case: case.options["D"] == "off" and case.seed == 0) == ""


@pytest.mark.parametrize("other", ["D=off/gentle/s1", "D=off/wide/s0"])
def test_a_change_that_another_failing_case_has_is_not(monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    _, failing = find(f"ssd.scan/b1,t3,g1,h1,p1,n1/{other}")
    assert told(monkeypatch, lambda case: case.options["D"] == "off", (failing,)) == ""


def test_a_change_whose_case_cannot_be_drawn_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packed run whose lengths are all 0 has no tokens."""

    def passes(case: Case) -> bool:
        if case.options["D"] == "off":
            raise EmptyWindow("there are no tokens")
        return case.options["z"] == "on"

    assert told(monkeypatch, passes) == "with z=on"
