"""Bugs that nobody planted are caught, equal no planted fault, and the report's own words name what is wrong."""

import pytest

from .invented import BUGS, SLOW_BUGS, Bug, diagnosed
from .invented_equations import EQUATIONS, SLOW_EQUATIONS
from .invented_later import QUICK, SLOW


@pytest.mark.parametrize(
    "bug",
    [
        *BUGS,
        *QUICK,
        *EQUATIONS,
        *(pytest.param(bug, marks=pytest.mark.nightly) for bug in (*SLOW_BUGS, *SLOW, *SLOW_EQUATIONS)),
    ],
    ids=lambda bug: bug.run.__name__,
)
def test_an_invented_bug_is_caught_and_its_cause_is_named(bug: Bug) -> None:
    found = list(diagnosed(bug))
    assert found, "not caught"
    assert not any("bug" in d.facts for d in found), "one bug is shown as several"
    told = " | ".join(" ".join(d.facts.values()) for d in found)
    assert all(d.looks_like == "" for d in found), "it resembles no planted fault"
    assert all(word in told for word in bug.words), told


def test_there_are_a_dozen_and_ten_of_them_are_named() -> None:
    for bugs in (BUGS, (*QUICK, *SLOW)):
        assert len(bugs) >= 12
        assert sum(bool(bug.words) for bug in bugs) >= 10
