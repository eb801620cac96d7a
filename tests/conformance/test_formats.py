"""A report for programs: JSON that its schema describes, SARIF, annotations that no text of a report can break."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from conformance.formats import annotations as workflow
from conformance.formats.annotations import annotations
from conformance.formats.document import document, schema
from conformance.formats.finding import Finding, findings, position
from conformance.formats.sarif import sarif
from conformance.refusal import FAILED, REFUSED
from conformance.report import stream
from conformance.report.stream import Report, read_report
from tests.commands import call, ends
from tests.reports import diagnosis, inapplicable, made, result

from .sarif_2_1_0 import LOG

HOSTILE = "100 %, 2:\n::error::not ours\r"
LINES = [
    result(0, used=float("inf")),
    result(1, "fail", 3.0),
    result(2, "unknown", failing="timeout", message=HOSTILE),
    result(3, "unknown", failing="timeout", message=HOSTILE),
    inapplicable(),
    diagnosis(facts={"behaves": "as if x"}, rerun="ssmspec conform run --adapter mine:adapter --case c"),
    diagnosis(verdict="known-failure", reason=HOSTILE, link="https://example.org/1"),
]
STEP = """
from ssmspec_ref import conv
from ssmspec_ref.contract import FLOAT64, Adapter, Capability, Subject

def step(M, u, params):
    y, M = conv.step(M, u, params)
    if len(u) == 1:
        raise RuntimeError("one row")
    return 1.01 * y, M

def adapter():
    return Adapter("mine", "1", (Subject("x", {"conv.step": Capability(step, FLOAT64)}),))
"""


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(STEP)
    return made(tmp_path / "report.jsonl", LINES)


def check_lines(lines: list[Any]) -> None:
    """Each line is as the schema says, and one with a field more is not."""
    validator = Draft202012Validator(schema())
    for line in lines:
        validator.validate(line)
        with pytest.raises(ValidationError):
            validator.validate(line | {"more": 1})


def test_the_schema_describes_the_lines_of_a_report(report: Report) -> None:
    lines = [json.loads(line) for line in Path("report.jsonl").read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"header", "result", "diagnosis", "footer"}
    check_lines(lines)
    told = json.loads(document(report))
    check_lines([told["header"], *told["results"], *told["diagnoses"], told["footer"]])
    assert json.loads(ends(0, "schema")) == schema()


def test_a_schema_without_infinite_numbers_is_seen(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = json.loads(json.dumps(schema()).replace(json.dumps(stream.NUMBER)[1:-1], '"type": "number"'))
    assert plain != schema()
    line = json.loads(report.results[0].model_dump_json())
    Draft202012Validator(schema()).validate(line)
    with pytest.raises(ValidationError):
        Draft202012Validator(plain).validate(line)


def test_findings_are_the_failures_and_what_stayed_unknown(report: Report) -> None:
    failed, known, unknown = findings(report)
    assert (failed.verdict, failed.rule, failed.file, failed.line) == ("fail", "ssd.scan/bound", "mine.py", 1)
    assert failed.text.splitlines()[0] == "cause: as if x"
    assert failed.text.splitlines()[-1] == "again: ssmspec conform run --adapter mine:adapter --case c"
    assert (known.verdict, known.file) == ("known-failure", "")
    assert (unknown.verdict, unknown.failures, unknown.rule) == ("unknown", 2, "ssd.scan/timeout")


def check_sarif(found: list[Finding]) -> dict[str, Any]:
    log: dict[str, Any] = json.loads(sarif(found))
    Draft202012Validator(LOG).validate(log)
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(rules)) == len(rules)
    assert [rules[r["ruleIndex"]] for r in run["results"]] == [r["ruleId"] for r in run["results"]]
    assert len(run["results"]) == len(found)
    return run


def test_sarif_is_as_the_standard_says(report: Report) -> None:
    run = check_sarif(findings(report))
    assert [r["level"] for r in run["results"]] == ["error", "note", "warning"]
    assert ["suppressions" in r for r in run["results"]] == [False, True, False]
    region = run["results"][0]["locations"][0]["physicalLocation"]
    assert region == {"artifactLocation": {"uri": "mine.py"}, "region": {"startLine": 1}}
    check_sarif([])


def test_a_line_before_the_first_is_no_sarif(report: Report) -> None:
    first = findings(report)[0]
    with pytest.raises(ValidationError):
        check_sarif([Finding(**vars(first) | {"line": 0})])


def check_annotations(found: list[Finding]) -> list[str]:
    lines = annotations(found).splitlines()
    assert len(lines) == len(found)
    assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in lines)
    return lines


def test_a_text_of_a_report_cannot_begin_a_workflow_command(report: Report) -> None:
    failed, known, unknown = check_annotations(findings(report))
    assert failed.startswith(
        "::error file=mine.py,line=1,title=fail%3A ssd.scan of kernel%3A bound::cause: as if x%0Adiffers: "
    )
    assert "known: 100 %25, 2:" in known
    (raw,) = check_annotations([Finding(**vars(findings(report)[0]) | {"text": HOSTILE, "subject": HOSTILE})])
    assert raw.endswith("::100 %25, 2:%0A::error::not ours%0D")
    assert "title=fail%3A ssd.scan of 100 %25%2C 2%3A%0A%3A%3Aerror%3A%3Anot ours%0D%3A bound::" in raw
    assert unknown.startswith("::warning file=mine.py,line=1,title=unknown%3A ssd.scan")


def test_an_annotation_without_escapes_is_seen(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow, "_text", lambda said: said)
    with pytest.raises(AssertionError):
        check_annotations(findings(report))


def test_the_line_that_raised_is_the_place_of_a_finding(report: Report) -> None:
    again = "ssmspec conform run --adapter mine:adapter"
    message = "RuntimeError: one row | calls.py:9 run() | mine.py:8 raise RuntimeError"
    assert position(again, message) == ("mine.py", 8)
    assert position("pytest ssmspec::x", message) == ("", 1)
    assert position("ssmspec conform run --adapter elsewhere.mine", message) == ("", 1)


@pytest.mark.parametrize("name", ["json", "github", "sarif"])
def test_a_run_prints_a_format_alone_and_its_report_again(name: str, report: Report) -> None:
    words = ("--adapter", "mine:adapter", "--tier", "smoke", "--explain", "quick", "--in-process", "--report", "there")
    ran = call("run", *words, "--output-format", name)
    assert ran.exit_code == FAILED, ran.output
    assert "tested against the float64 reference" in ran.stderr
    assert call("report", "there", "--output-format", name).stdout == ran.stdout
    read = read_report(Path("there"))
    if name == "json":
        told = json.loads(ran.stdout)
        check_lines([told["header"], *told["results"], *told["diagnoses"], told["footer"]])
        assert len(told["results"]) == read.footer.results
    elif name == "sarif":
        Draft202012Validator(LOG).validate(json.loads(ran.stdout))
        assert {(f.failing, f.line) for f in findings(read)} == {("bound", 1), ("error", 8)}
    else:
        assert len(check_annotations(findings(read))) == len(ran.stdout.splitlines()) == 2


def test_a_format_that_does_not_exist_is_refused() -> None:
    ends(REFUSED, "report", "there", "--output-format", "xml")
