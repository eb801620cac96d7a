"""What a failing case needs in order to pass is told only where no draw and no other failing case says otherwise."""

from typing import Any

import pytest

from conformance.cases import Case
from conformance.diagnose.changes import drawn
from conformance.diagnose.changes.needs import needs
from conformance.faults.fault import FP32
from conformance.faults.recurrences import arithmetic
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
        return Judged(drawn.Verdict.PASS if passes(case) else drawn.Verdict.FAIL)

    monkeypatch.setattr(drawn, "judge", judged)
    capability = Capability(arithmetic.right, FP32)
    return needs(specification, capability, case, failing)


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


def test_a_change_with_which_another_failing_case_fails_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four tokens pass here, but not in two rows."""
    _, failing = find("ssd.scan/b2,t3,g1,h1,p1,n1/plain/gentle/s1")
    four = lambda case: case.sizes["t"] == 4  # noqa: E731
    assert told(monkeypatch, four) == "with 4 tokens instead of 3"
    assert told(monkeypatch, lambda case: four(case) and case.sizes["b"] == 1, (failing,)) == ""


def test_a_change_that_passes_the_first_draws_by_luck_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def lucky(case: Case) -> bool:
        return case.options["D"] == "off" and case.seed < 5 * drawn.STEP

    assert told(monkeypatch, lucky) == ""
