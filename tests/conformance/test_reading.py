"""A failure is read from the top: its cause, the first difference, the smallest case, the line that runs it again."""

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from conformance.diagnose import facts as searched
from conformance.diagnose.facts import UNEXPLAINED, facts
from conformance.diagnose.pieces import piece_at, touched_pieces
from conformance.faults.catalogue import of_name
from conformance.report import reading as told
from conformance.report.failure_groups import grouped
from conformance.report.matrix import failures, show
from conformance.report.page import page
from conformance.report.stream import Diagnosis
from conformance.run.known import read_known
from conformance.run.results import QUICK, Setting
from conformance.run.runner import run
from ssmspec_ref.contract import Capability
from ssmspec_ref.mamba3 import Pieces, packed
from tests.reports import diagnosis, inapplicable, made, result

from .judging import FP32, failing, planned

FACTS = {"values": "y at row 0: expected 1, got 2", "extent": "y: everywhere", "behaves": "as if x", "limits": "ended"}
LOOKS = "equals the planted fault `x`"
RIGHT = "ssd.scan, in the output: row 0; right: the recurrent state"
FULL = diagnosis(facts=FACTS, diverges=RIGHT, looks_like=LOOKS, source="a paper")


def lines(d: Diagnosis) -> told.Reading:
    (group,) = grouped([d])
    return told.reading(group)


def check_order(d: Diagnosis) -> None:
    """The cause, the difference with its own values, the smallest case; every fact once."""
    read = lines(d)
    assert [name for name, _ in read.first] == ["cause", "differs", "smallest"]
    assert read.first[0][1] == FACTS["behaves"]
    assert read.first[1][1] == "y at row 0: expected 1, got 2; right: the recurrent state"
    assert [name for name, _ in read.rest] == ["worst", "extent", "limits", "looks", "tests"]
    assert read.again == ("again",)


def test_a_failure_is_read_from_its_cause_to_the_line_that_runs_it_again() -> None:
    check_order(FULL)


def test_a_difference_with_the_values_of_another_place_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told, "difference", lambda d: d.message)
    with pytest.raises(AssertionError):
        check_order(FULL)


def test_without_a_cause_or_values_the_message_comes_first() -> None:
    bare = lines(diagnosis(diverges=RIGHT))
    assert bare.first[0] == ("differs", "y is wrong <at once> & everywhere")
    assert ("diverges", RIGHT) in bare.rest
    assert told.cause_of(diagnosis()) == ""
    assert lines(diagnosis(looks_like=LOOKS)).first[0] == ("cause", LOOKS)
    assert "looks" not in dict(lines(diagnosis(looks_like=LOOKS)).rest)


def printed(*lines: Diagnosis, folded: bool) -> str:
    text = StringIO()
    Console(file=text, width=200).print(failures(lines, [], not folded))
    return text.getvalue()


def test_the_terminal_and_the_page_fold_the_rest(tmp_path: Path) -> None:
    assert "extent" not in printed(FULL, folded=True)
    assert "extent    y: everywhere" in printed(FULL, folded=False)
    text = page(made(tmp_path / "report.jsonl", [result(0, "fail", 3.0), FULL]))
    way = text[text.index('<section id="ways"') : text.index('<section id="used"')]
    assert way.index("as if x") < way.index("expected 1") < way.index("again</code>") < way.index("<details>")
    assert way.index("<details>") < way.index("y: everywhere") < way.index(LOOKS)


def test_the_counts_of_a_report_add_up_and_are_those_of_its_page(tmp_path: Path) -> None:
    partly = inapplicable("ssd.scan", "no option").model_copy(update={"contract": "fp32/sequential", "outside": 6})
    report = made(tmp_path / "report.jsonl", [result(0), result(1, "fail", 3.0), inapplicable(), inapplicable(), partly])
    text = StringIO()
    show(Console(file=text, width=200), report.header, report.results, [], "there")
    for said in ("2 cases", "1 pass", "1 fail", "inapplicable: 6 cases", "not offered: 1 operation "):
        assert said in text.getvalue()
    for said in ("<b>1</b> pass", "<b>1</b> fail", "<b>6</b> inapplicable", "<b>1</b> operation not offered", "2 cases run"):
        assert said in page(report)
    assert "6 cases outside the limits, 1 operation not offered" in page(report)


def test_no_single_change_is_never_said_beside_a_planted_fault_that_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searched, "causes", lambda *given: ([], False))
    monkeypatch.setattr(searched, "equation", lambda *given: [])
    capability = of_name("lost_skip").capability
    jobs = failing(planned({"ssd.scan": Capability(capability.run, FP32)})[0])[:2]
    given = (jobs[0].specification, capability, jobs[0].case, [job.case for job in jobs], [])
    assert UNEXPLAINED in facts(*given)["limits"]
    assert UNEXPLAINED not in facts(*given, explained=True).get("limits", "")


SIZES = {"p": 3, "n": 4, "f": 2, "r": 2}
AXIS = "pn+f+rn+p"


def test_every_number_of_a_packed_state_belongs_to_the_piece_that_it_is_packed_from() -> None:
    shapes = {"the state matrix": ("pn", (3, 4)), "the angles": ("f", (2,)), "the last key": ("rn", (2, 4))}
    shapes["the last value"] = ("p", (3,))
    numbered = [np.arange(np.prod(shape), dtype=float).reshape(1, 1, *shape) for _, shape in shapes.values()]
    whole = packed(Pieces(*numbered))[0, 0]
    found = [piece_at(AXIS, at, SIZES) for at in range(len(whole))]
    assert [name for name, _ in found] == [name for name, (_, shape) in shapes.items() for _ in range(int(np.prod(shape)))]
    for number, (name, inside) in zip(whole, found, strict=True):
        axes, shape = shapes[name]
        assert np.ravel_multi_index([inside[axis] for axis in axes], shape) == number
    assert piece_at("n", 3, SIZES) == ("", {"n": 3})
    assert touched_pieces(AXIS, np.array([0, 12, 13]), SIZES) == "the state matrix (1 of 12 numbers), the angles"


def test_a_state_of_several_pieces_names_the_piece_that_is_wrong() -> None:
    jobs, _ = planned(of_name("KeepsTheAngle").subject, operation="mamba3.verify_snapshots")
    (found,) = run(jobs, [], Setting({"x": read_known("x")}, explain=QUICK)).diagnoses
    (first, *_) = [said for name, said in lines(found).first if name == "differs"]
    assert "the angles (angle " in found.diverges
    assert "the angles (angle " in first
    assert " of the angles" in found.message
    assert AXIS not in found.message + found.diverges + first + found.facts["extent"]
