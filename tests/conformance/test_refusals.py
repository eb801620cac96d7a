"""What is refused though the limits claim it fails, with the line that leaves it out; a refusal is never plain green."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conformance.engines.judge import Found
from conformance.report import failure_groups
from conformance.report.badge import badge
from conformance.report.failure_groups import FailureGroup, grouped
from conformance.report.grid import Cell
from conformance.report.junit import junit
from conformance.report.reading import reading
from conformance.run.runner import Outcome
from ssmspec_ref import conv, ssd
from ssmspec_ref.contract import FLOAT64, Capability
from ssmspec_ref.errors import ParameterError, Unsupported
from tests.reports import made, result

from .engines.test_engine_judge import shown
from .judging import outcome


def refusing(error: type[Exception], what: Any = lambda params: params.D is not None and params.D.ndim == 2) -> Capability:
    """A step that raises for a skip connection per channel, or for other parameters."""

    def step(S: Any, token: Any, params: Any) -> Any:
        if what(params):
            raise error("D per channel is not written")
        return ssd.step(S, token, params)

    return Capability(step, FLOAT64)


@pytest.mark.parametrize(("error", "kind"), [(Unsupported, "refused"), (ParameterError, "error"), (ValueError, "error")])
def test_a_refusal_that_the_limits_claim_fails_with_the_line_that_leaves_it_out(error: type[Exception], kind: str) -> None:
    found = outcome({"ssd.step": refusing(error)})
    (diagnosis,) = found.diagnoses
    assert not found.green
    assert diagnosis.failing == kind
    assert "declare limits=Limits({" in diagnosis.facts["takes"]
    assert '"D": ("head", "off")' in diagnosis.facts["takes"]
    assert {"pass", "fail"} <= {r.verdict for r in found.results}


def test_an_operation_that_refuses_every_case_is_told_to_be_left_out() -> None:
    found = outcome({"ssd.step": refusing(Unsupported, lambda params: True)})
    ran = tuple(r for r in found.results if r.case)
    assert {r.failing for r in ran} == {"refused"}
    assert "do not declare ssd.step" in found.diagnoses[0].facts["takes"]
    assert Cell(ran).bad == [f"{len(ran)} refused", "not exercised"]


CALLS: Counter[str] = Counter()


def launch(name: str) -> None:
    CALLS[name] += 1
    raise RuntimeError(f"no kernel image for {name}")


def elsewhere(*given: Any) -> None:
    CALLS["elsewhere"] += 1
    raise RuntimeError("no kernel image at all")


def several() -> Outcome:
    """Two operations that raise at one line, and one that raises at another."""
    CALLS.clear()
    runs = {"conv.step": lambda *given: launch("step"), "conv.scan": lambda *given: launch("scan"), "ssd.step": elsewhere}
    return outcome({name: Capability(run, FLOAT64) for name, run in runs.items()})


def check_one_entry(found: Outcome) -> None:
    """The exception of two operations is one entry with the count of both, and is searched once."""
    cases = Counter(r.operation for r in found.results if r.case)
    by_line = {group.operations: group for group in grouped(found.diagnoses)}
    assert set(by_line) == {"conv.step, conv.scan", "ssd.step"}
    assert by_line["conv.step, conv.scan"].failures == cases["conv.step"] + cases["conv.scan"]
    assert CALLS["scan"] == cases["conv.scan"], "the second operation is not searched again"
    assert CALLS["step"] > cases["conv.step"], "the first is made small"
    assert all(len(reading(group).again) == 1 for group in by_line.values())


def test_the_same_exception_from_one_line_is_one_entry_and_is_searched_once() -> None:
    check_one_entry(several())


def test_an_entry_for_each_operation_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_groups, "origin", lambda kind, message: message)
    found = several()
    with pytest.raises(AssertionError):
        check_one_entry(found)


def test_two_lines_that_raise_in_one_operation_are_two_entries() -> None:
    def step(M: Any, u: Any, params: Any) -> Any:
        if len(M) == 1:
            raise RuntimeError("one row")
        if len(M) > 2:
            raise RuntimeError("many rows")
        return conv.step(M, u, params)

    found = outcome({"conv.step": Capability(step, FLOAT64)}, "standard", operation="conv.step")
    groups: list[FailureGroup] = grouped(found.diagnoses)
    assert sorted(group.first.message.split(" | ")[0] for group in groups) == [
        "RuntimeError: many rows", "RuntimeError: one row",
    ]  # fmt: skip
    assert sum(group.failures for group in groups) == sum(r.verdict == "fail" for r in found.results)


def test_badge_and_junit_say_how_many_were_refused(tmp_path: Path) -> None:
    report = made(tmp_path / "report.jsonl", [result(0), result(1, "fail", failing="refused", message="Unsupported: D")])
    assert "1 of 2 pass, 1 not (1 refused)" in badge(report)
    assert 'type="refused"' in junit(report)


def engine(**outcomes: Any) -> Found:
    found = Found(counts={name: [0, 0] for name in outcomes})
    for name, said in outcomes.items():
        found.count(name, "repeated" if name == "plain" else name, said)
    found.refusals = {name: "no" for name, said in outcomes.items() if said == "refused"}
    return found


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ({"plain": "passed", "cache": "passed"}, "passed"),
        ({"plain": "passed", "cache": "refused"}, "passed, with 1 configuration refused"),
        ({"plain": "passed", "cache": "refused", "chunk": "refused"}, "passed, with 2 configurations refused"),
        ({"plain": "refused"}, "not exercised, with 1 configuration refused"),
        ({"plain": "differs", "cache": "refused"}, "failed, with 1 configuration refused"),
    ],
)
def test_an_engine_that_passed_with_refusals_says_so(outcomes: dict[str, Any], verdict: str) -> None:
    found = engine(**outcomes)
    assert found.verdict == verdict
    assert f"\n{verdict}\n" in shown(found)
    assert found.green is verdict.startswith("passed")
    assert ("\x1b[1;32mpassed" in shown(found, force_terminal=True)) is (verdict == "passed"), "plain green"
