"""The suite judged: the catalogue is whole, the hunt finds what is wrong and nothing else, right rewritings pass."""

import json
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from conformance import false_alarms, meta
from conformance.cases import Case
from conformance.false_alarms import campaign, markdown, tally
from conformance.faults.catalogue import FAULTS, of_name
from conformance.faults.classes import CLASSES, LEFT_OUT
from conformance.faults.fault import FP32, fault
from conformance.faults.recurrences import arithmetic
from conformance.meta import DRAWS, STRIDE, drawn, hunt, jobs, redrawn
from conformance.progress.rotation import PARTS, Draw
from conformance.rewritings import CHUNK, RULES, Rewriting, every
from ssmspec_ref.contract import FLOAT64, OPERATIONS, Capability, Subject


def test_every_class_has_a_fault_or_a_reason() -> None:
    planted = {f.bug_class for f in FAULTS}
    assert planted <= set(CLASSES)
    assert set(CLASSES) - planted <= set(LEFT_OUT)


def test_every_fault_says_what_it_does_and_has_its_operation() -> None:
    assert all(f.says.endswith(".") and f.operation in OPERATIONS for f in FAULTS)
    assert all(f.operation in f.subject.capabilities for f in FAULTS)
    assert len({(f.name, f.operation) for f in FAULTS}) == len(FAULTS) > 140
    assert sum(bool(f.source) for f in FAULTS) > 40


def test_five_days_hunt_every_fault_once_and_each_day_one_of_every_class() -> None:
    days = [drawn(Draw(date(2026, 12, day), "1f0c2a")) for day in range(1, 1 + PARTS)]
    counts = Counter(number for day in days for number in day)
    assert set(counts) == set(range(len(FAULTS))) == set(drawn(None))
    of_class = Counter(f.bug_class for f in FAULTS)
    assert all(counts[n] == 1 for n, f in enumerate(FAULTS) if of_class[f.bug_class] >= PARTS)
    assert all({FAULTS[number].bug_class for number in day} == set(of_class) for day in days)
    assert all(len(day) < 0.25 * len(FAULTS) for day in days)


@pytest.mark.parametrize(
    ("options", "needs"), [(("--draw", "now"), "DATE:TREE"), (("--draw", "today", "--out", "x.md"), "all")]
)
def test_a_wrong_draw_and_a_page_of_a_fifth_are_refused(options: tuple[str, ...], needs: str) -> None:
    app = typer.Typer()
    app.command()(meta.main)
    refused = CliRunner().invoke(app, options, env={"COLUMNS": "200"})
    assert (refused.exit_code, needs in refused.output) == (2, True), refused.output
    assert not Path("x.md").exists()


def test_the_table_that_is_committed_names_every_fault() -> None:
    text = (Path(__file__).parents[2] / "docs" / "evidence" / "faults.md").read_text(encoding="utf-8")
    missing = [f.name for f in FAULTS if f"| {f.name} | {f.says} | {f.operation} |" not in text]
    assert missing == [], "python -m conformance.meta --out docs/evidence/faults.md"
    assert "**nothing**" not in text


def test_other_draws_are_other_numbers_behind_the_same_cases() -> None:
    (job, *_) = jobs(of_name("group_map").subject, "ssd.scan", "smoke")
    other = redrawn(job.specification, STRIDE)
    first, second = (s.draw(job.case, job.capability.contract)[0] for s in (job.specification, other))
    assert first.shape == second.shape
    assert not np.array_equal(first, second)
    assert other.identify(job.case) != job.specification.identify(job.case)


def test_what_is_right_is_not_caught_and_what_is_wrong_is_in_every_draw() -> None:
    right = Subject("right", {"ssd.scan": Capability(arithmetic.right, FP32)})
    passed = hunt(fault("CONDUCT", "ssd.scan", right))
    assert (passed.failed, passed.draws, passed.surely) == ((), 0, False)
    caught = hunt(fault("GROUP-MAP", "ssd.scan", of_name("group_map").subject))
    assert (caught.draws, caught.kinds) == (DRAWS, ("bound",))


def test_a_fault_of_one_draw_is_called_luck() -> None:
    """Wrong for the inputs of the table only."""

    def lucky(S: np.ndarray, window: object, params: object) -> tuple[np.ndarray, np.ndarray]:
        y, S_next = arithmetic.right(S, window, params)
        return y + (S.flat[0] == first), S_next

    subject = Subject("lucky", {"ssd.scan": Capability(lucky, FP32)})
    job = jobs(subject, "ssd.scan")[0]
    first = job.specification.draw(job.case, job.capability.contract)[0].flat[0]
    found = hunt(fault("CONDUCT", "ssd.scan", subject))
    assert found.failed
    assert (found.draws, found.surely) == (1, False)


@pytest.mark.parametrize("rewriting", list(every()), ids=lambda r: r.subject.name)
def test_a_right_rewriting_is_never_blamed(rewriting: Rewriting) -> None:
    found = tally(rewriting, range(12))
    assert found.blamed == ()
    assert 0 < found.worst <= 1


def test_a_rewriting_under_a_contract_that_it_does_not_keep_is_blamed() -> None:
    class Narrow(Rewriting):
        """bf16 where float32 is declared."""

        @property
        def contract(self):  # type: ignore[no-untyped-def]
            return replace(super().contract, state="fp32", io="fp32", stored_every_token=False)

    found = tally(Narrow("ssd", "bf16", "sequential"), range(3))
    assert len(found.blamed) == 3
    assert "**3 false alarms in 3 cases.**" in markdown([found], 3)


def test_a_campaign_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [Rewriting("shortconv", "fp64", order) for order in ("sequential", "chunked")]
    monkeypatch.setattr(false_alarms, "every", lambda: few)
    monkeypatch.setattr(false_alarms, "BLOCK", 2)
    kept = tmp_path / "kept.jsonl"
    whole = campaign(5, 1, kept)
    assert [t.judged for t in whole] == [5, 5]
    lines = kept.read_text().splitlines()
    assert len(lines) == 6
    altered = {**json.loads(lines[0]), "judged": 1002}  # if this block were run again, it would be 2
    kept.write_text("\n".join([json.dumps(altered), *lines[1:4], lines[4][:30]]))
    again = campaign(5, 1, kept)
    assert sum(t.judged for t in again) == 1010
    assert {t.worst for t in again} == {t.worst for t in whole}
    assert len(kept.read_text().splitlines()) == 6
    monkeypatch.setattr(false_alarms, "sources", lambda: "others")
    with pytest.raises(ValueError, match="made by sources"):
        campaign(5, 1, kept)


def test_rewritings_evaluate_in_other_orders() -> None:
    """Bits differ between the orders, so that they are not one implementation under three names."""
    job = jobs(Rewriting("ssd", "fp32", "sequential").subject, "ssd.scan")[0]
    case: Case = job.specification.case({"t": 4 * CHUNK + 1}, {}, "normal", 3)
    arguments = job.specification.draw(case, replace(FLOAT64, state="fp32", io="fp32"))
    outputs = [Rewriting("ssd", "fp32", order).scan(*arguments)[0] for order in RULES["ssd"].runs]
    assert len(outputs) == 4
    for number, output in enumerate(outputs):
        assert not any(np.array_equal(output, other) for other in outputs[:number])
