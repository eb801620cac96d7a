"""A report is read back as it was written, and refused when it is cut or edited; known failures ratchet."""

import re
from datetime import date
from pathlib import Path

import pytest

from conformance.errors import KnownListError, ReportError
from conformance.faults.catalogue import of_name
from conformance.report.stream import SCHEMA, read_report
from conformance.run.known import FOLDER, Entry, Known, read_known
from conformance.run.results import Setting
from conformance.run.runner import run
from ssmspec_ref.contract import Capability, Verdict
from tests.reports import result, write

from .judging import FP32, planned

TODAY = date(2026, 12, 1)


RESULTS = [result(0, verdict, float("inf")) for verdict in ("pass", "pass", "fail", "inapplicable")]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return write(tmp_path / "report.jsonl", RESULTS)


def test_a_report_is_read_back_as_it_was_written(written: Path) -> None:
    report = read_report(written)
    assert report.results == RESULTS
    assert report.footer.verdicts == {"pass": 2, "fail": 1, "inapplicable": 1}
    assert report.results[0].outputs[0].utilisation == float("inf")
    assert report.header.adapters == {"mine": "1.0"}


def test_the_header_names_the_machine_but_neither_host_nor_folder(written: Path) -> None:
    import platform

    first = written.read_text(encoding="utf-8").splitlines()[0]
    assert platform.python_version() in first
    assert platform.node() not in first
    assert str(Path.cwd()) not in first


def test_a_truncated_report_is_refused_wherever_it_is_cut(written: Path) -> None:
    lines = written.read_text(encoding="utf-8").splitlines()
    for kept in range(len(lines)):
        written.write_text("\n".join(lines[:kept]), encoding="utf-8")
        with pytest.raises(ReportError):
            read_report(written)
    written.write_text("\n".join(lines)[:-20], encoding="utf-8")
    with pytest.raises(ReportError):
        read_report(written)


def test_an_edited_report_is_refused(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    lines = text.splitlines()
    edits = {
        "a failure turned into a pass": text.replace('"verdict":"fail"', '"verdict":"pass"', 1),
        "a result removed": "\n".join(lines[:1] + lines[2:]),
        "a result repeated": "\n".join([*lines[:2], *lines[1:]]),
        "a verdict of our own": text.replace('"verdict":"fail"', '"verdict":"fine"', 1),
        "a second header": "\n".join([lines[0], *lines]),
        "an unknown field": text.replace('"kind":"result"', '"kind":"result","note":1', 1),
        "another version": text.replace(f'"schema_version":{SCHEMA}', '"schema_version":2'),
        "a bound made larger": text.replace('"bound":1e-6', '"bound":1e-5', 1),
        "another rerun line": text.replace('"rerun":"ssmspec', '"rerun":"true', 1),
        "two lines exchanged": "".join(
            [lines[0], "\n", lines[3], "\n", lines[2], "\n", lines[1], "\n", *(f"{x}\n" for x in lines[4:])]
        ),
        "another day": re.sub(r'"started":"\d{4}', '"started":"1999', text),
    }
    for edited in edits.values():
        assert edited != text
        written.write_text(edited, encoding="utf-8")
        with pytest.raises(ReportError):
            read_report(written)


def known(*entries: dict[str, object], today: date = TODAY) -> Known:
    common = {"reason": "as stated", "link": "https://example.org/1", "expires": date(2027, 1, 1)}
    return Known([Entry.model_validate(common | entry) for entry in entries], today)


CASE = "layer.rollback/b1,t1,j1/kind=mamba2/gentle/s0"


def test_a_listed_failure_is_a_known_failure() -> None:
    entries = known({"case": "layer.rollback/*", "subject": "mamba?"})
    assert entries.apply("mamba2", "c", CASE, Verdict.FAIL)[0] is Verdict.KNOWN_FAILURE
    assert entries.apply("bamba", "c", CASE, Verdict.FAIL)[0] is Verdict.FAIL
    assert entries.unmet() == []


def test_a_listed_failure_that_passes_has_expired_or_matches_nothing_is_an_error() -> None:
    passing, _, said = known({"case": "*"}).apply("s", "c", CASE, Verdict.PASS)
    assert passing is Verdict.FAIL
    assert "passes" in said
    expired, _, said = known({"case": "*", "expires": date(2026, 11, 30)}).apply("s", "c", CASE, Verdict.FAIL)
    assert expired is Verdict.FAIL
    assert "expired" in said
    unmet = known({"case": "ssd.*"})
    unmet.apply("s", "c", CASE, Verdict.FAIL)
    assert [entry.case for entry in unmet.unmet()] == ["ssd.*"]


def test_the_unknown_never_becomes_known() -> None:
    assert known({"case": "*"}).apply("s", "c", CASE, Verdict.UNKNOWN)[0] is Verdict.UNKNOWN


def test_a_list_in_force_decides_over_a_run() -> None:
    def fails(*arguments: object) -> None:
        raise RuntimeError("no kernel image")

    jobs, left_out = planned({"ssd.step": Capability(fails, FP32)})
    green = run(jobs, left_out, Setting({"x": known({"case": "ssd.step/*"})}), whole=True)
    assert green.green
    assert {r.verdict for r in green.results if r.case} == {"known-failure"}
    assert [d.verdict for d in green.diagnoses] == ["known-failure"]
    stale = run(jobs, left_out, Setting({"x": known({"case": "ssd.step/*"}, {"case": "delta.*"})}), whole=True)
    assert not stale.green
    assert [r.case for r in stale.results if r.verdict == "fail"] == ["delta.*"]


@pytest.mark.parametrize(
    "text", ["[[known]]\ncase = 'x'\n", "[[known]\n", "[[known]]\ncase='x'\nreason='r'\nlink='l'\nexpires='never'\n"]
)
def test_a_list_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(KnownListError):
        read_known("mine", path)


def test_the_lists_that_ship_can_be_read_and_each_entry_has_a_reason_and_a_link() -> None:
    for path in sorted(FOLDER.glob("*.toml")):
        entries = read_known(path.stem).entries
        assert entries
        assert all(entry.reason and entry.link for entry in entries)


def test_a_new_failure_is_not_blamed_on_a_known_one(tmp_path: Path) -> None:
    """Two ways of failing in one cell: the listed one and the new one each have their own smallest case and reason."""
    listed = tmp_path / "known.toml"
    listed.write_text(
        '[[known]]\ncase = "ssd.scan/b2,t1,*"\nreason = "single tokens"\nlink = "https://example.org"\nexpires = 2999-01-01\n'
    )
    jobs, left_out = planned(of_name("bf16_state").subject, "standard", operation="ssd.scan")
    found = run(jobs, left_out, Setting({"x": read_known("x", listed)})).diagnoses
    assert {(d.verdict, d.reason, d.smallest.startswith("ssd.scan/b2,t1,")) for d in found} == {
        ("fail", "", False),
        ("known-failure", "single tokens", True),
    }
