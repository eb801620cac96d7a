"""Files of older versions are read, or refused by the name of their version."""

import json
import shutil
from pathlib import Path

import pytest

from conformance.errors import AdapterUnavailable, ReportError
from conformance.refusal import REFUSED
from conformance.report import badge
from conformance.report.stream import READ, SCHEMA, read_report
from conformance.run.load import PROGRAM
from conformance.run.process import Process
from tests.commands import ROOT, ends

OLDER = Path(__file__).parent / "older"
SMOKE = ("run", "--adapter", "reference", "--operation", "conv.commit", "--tier", "smoke", "--in-process")
EXAMPLE = ROOT / "docs" / "examples" / "program.py"


@pytest.mark.parametrize(("version", "passed"), [(2, 5), (3, 5), (4, 5)])
def test_a_report_of_an_older_version_is_read(version: int, passed: int) -> None:
    read = read_report(OLDER / f"report-{version}.jsonl")
    assert read.header.schema_version == version
    assert read.footer.verdicts["pass"] == passed
    assert read.footer.verdicts["pass"] + read.footer.verdicts["inapplicable"] == read.footer.results


def test_every_older_version_that_is_read_has_a_committed_report() -> None:
    assert {path.name for path in OLDER.glob("report-*.jsonl")} == {f"report-{version}.jsonl" for version in (1, *READ)} - {
        f"report-{SCHEMA}.jsonl"
    }


@pytest.mark.parametrize(
    ("version", "said"), [(1, "schema 1"), (99, "schema 99"), ("x", "schema 'x'"), (None, "schema None")]
)
def test_a_report_of_another_version_is_refused_by_its_name(tmp_path: Path, version: object, said: str) -> None:
    text = (OLDER / "report-1.jsonl").read_text().replace('"schema_version":1', f'"schema_version":{json.dumps(version)}')
    (tmp_path / "report.jsonl").write_text(text)
    with pytest.raises(ReportError, match=f"has {said}, but this ssmspec reads 2 to {SCHEMA}"):
        read_report(tmp_path)
    ends(REFUSED, "report", tmp_path)


def test_an_unfinished_run_of_another_version_is_not_resumed(tmp_path: Path) -> None:
    for number, said in ((1, "has schema 1"), (2, "schema_version")):
        lines = (OLDER / f"report-{number}.jsonl").read_text().splitlines(keepends=True)[:-1]
        (tmp_path / "report.jsonl").write_text("".join(lines))
        ends(REFUSED, *SMOKE, "--resume", "--report", tmp_path, said=said)
        assert (tmp_path / "report.jsonl").read_text() == "".join(lines)


def test_a_badge_says_which_report_it_is_of_and_an_older_one_is_refused(tmp_path: Path) -> None:
    ends(0, *SMOKE, "--report", tmp_path)
    drawn, report = tmp_path / "badge.svg", read_report(tmp_path)
    assert badge.read(drawn.read_text()) == (SCHEMA, report.footer.digest)
    assert "badge.svg" not in ends(0, "report", tmp_path)
    shutil.copy(OLDER / "badge-0.svg", drawn)
    with pytest.raises(ReportError, match="has no schema; `ssmspec conform page` writes it again"):
        badge.read(drawn.read_text())
    ends(0, "report", tmp_path, said="badge.svg belongs to another report")
    newer = badge.badge(report).replace(f'data-schema="{SCHEMA}"', 'data-schema="99"')
    with pytest.raises(ReportError, match="schema 99"):
        badge.read(newer)


def test_a_program_of_the_first_protocol_is_read_and_one_of_another_refused(tmp_path: Path) -> None:
    for protocol, right in (("", True), ('"protocol": 1,', True), ('"protocol": 0,', False), ('"protocol": "2",', False)):
        source = EXAMPLE.read_text().replace("DECLARED = {\n", f"DECLARED = {{\n    {protocol}\n")
        assert source.count(protocol)
        (tmp_path / "program.py").write_text(source)
        name = f"{PROGRAM}python {tmp_path / 'program.py'}"
        if right:
            Process(name).close()
        else:
            with pytest.raises(AdapterUnavailable, match="speaks protocol"):
                Process(name)
