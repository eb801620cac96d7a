"""`--resume` over a report that a worker has written to, or that is damaged: nothing forged is green, no line ends a command
by a traceback."""

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from conformance.errors import ReportError
from conformance.progress.resume import read_kept
from conformance.refusal import FAILED, REFUSED
from conformance.report import artefacts
from conformance.report.badge import GREEN, RED, YELLOW
from conformance.report.stream import Footer, Report, read_report
from tests.commands import done, ends, holds, reported

pytestmark = pytest.mark.timeout(900)
FORGES = '''
"""Wrong in every case. Once the report holds eight failures, they become passes, in place, and the judge is killed."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
from ssmspec_ref import selective
from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject

HERE, RIGHT = Path({here!r}), {right!r}
KILLED, CALLED, REPORT = HERE / "killed", HERE / "called", HERE / "report" / "report.jsonl"


def forged(line):
    if line.get("verdict") == "fail":
        line |= {{"verdict": "pass", "failing": "", "message": ""}}
        line["outputs"] = [output | {{"utilisation": 0.25, "picture": []}} for output in line["outputs"]]
    return json.dumps(line)


def forge():
    while not REPORT.exists() or REPORT.read_text().count('"verdict":"fail"') < 8:
        time.sleep(0.01)
    warden = Path(f"/proc/{{os.getppid()}}/stat").read_text()
    judge = int(warden.rpartition(")")[2].split()[1])
    os.kill(judge, signal.SIGSTOP)  # what it writes meanwhile would end up within a forged line
    with REPORT.open("r+") as stream:
        lines = [json.loads(line) for line in stream.read().splitlines(keepends=True) if line.endswith("\\n")]
        stream.seek(0)
        stream.truncate()
        stream.write("".join(forged(line) + "\\n" for line in lines))
        stream.flush()
    KILLED.touch()
    os.kill(judge, signal.SIGKILL)


def step(*given):
    with CALLED.open("a") as stream:
        stream.write("\\n")
    if not KILLED.exists():
        time.sleep(0.1)
    wrong = 0 if RIGHT and KILLED.exists() else 1
    return tuple(np.asarray(a + wrong, dtype=np.float32) for a in selective.step(*given))


def adapter():
    if not KILLED.exists():
        threading.Thread(target=forge, daemon=True).start()
    operations = {{"selective.step": Capability(step, NumericContract())}}
    return Adapter("forges", "1", tuple(Subject(f"kernel {{i}}", operations) for i in range(3)))
'''


def forged(folder: Path, right: bool) -> tuple[str, ...]:
    """The words of a run whose report was forged; its judge was killed."""
    (folder / "forges.py").write_text(FORGES.format(here=str(folder), right=right))
    words = ("run", "--adapter", "forges:adapter", "--tier", "smoke", "--seed", 7, "--report", folder / "report")
    done(*words, folder=folder, code=-signal.SIGKILL)
    lines = [json.loads(line) for line in (folder / "report" / "report.jsonl").read_text().splitlines()]
    found = [line["verdict"] for line in lines if line.get("case")]
    assert found.count("pass") >= 8
    assert "fail" not in found
    (folder / "called").unlink()
    return tuple(map(str, words))


def test_failures_that_a_worker_turned_into_passes_are_run_again(tmp_path: Path) -> None:
    words = forged(tmp_path, right=False)
    said = "of the interrupted run: 0 kept, 8 run again (--keep-passed keeps what passed)"
    done(*words, "--resume", folder=tmp_path, code=FAILED, said=said)
    report, drawn = read_report(tmp_path / "report"), (tmp_path / "report" / "badge.svg").read_text()
    assert {r.verdict for r in report.results if r.case} == {"fail"}
    assert RED in drawn
    assert GREEN not in drawn


def test_a_worker_that_is_right_in_the_second_run_has_to_be_right_in_every_case(tmp_path: Path) -> None:
    """No case counts that was not run again, so that this is worth what a new run is worth. Where the user trusts the
    adapter, its lines count, but the badge is not green."""
    words = forged(tmp_path, right=True)
    lines = (tmp_path / "report" / "report.jsonl").read_bytes()
    trusted = done(*words, "--resume", "--keep-passed", folder=tmp_path, code=0)
    report, drawn = read_report(tmp_path / "report"), (tmp_path / "report" / "badge.svg").read_text()
    assert report.header.resumed >= 8
    holds(drawn, (YELLOW, "resumed"))
    assert GREEN not in drawn
    assert f"resumed: {report.header.resumed} results kept from an interrupted run, and not run again" in trusted.stdout
    (tmp_path / "report" / "report.jsonl").write_bytes(lines)
    (tmp_path / "called").unlink(missing_ok=True)
    done(*words, "--resume", folder=tmp_path)
    report = read_report(tmp_path / "report")
    cases = [r for r in report.results if r.case]
    assert report.header.resumed == 0
    assert (tmp_path / "called").read_text().count("\n") >= len(cases) >= 12


ONE = ("run", "--adapter", "reference", "--case", "conv.step/b1,c1,w2/plain/normal/s0", "--in-process", "--seed", "7")


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines of a report, without its footer."""
    folder = tmp_path_factory.mktemp("whole")
    ends(0, *ONE, "--report", folder)
    return (folder / "report.jsonl").read_text().splitlines()[:-1]


def left(folder: Path, lines: list[str], **first: str) -> None:
    """A report that was cut, with another first result."""
    changed = json.dumps(json.loads(lines[1]) | first)
    (folder / "report.jsonl").write_text("\n".join([lines[0], changed, *lines[2:]]) + "\n")


def with_field(**given: Any) -> Any:
    return lambda line: json.dumps(json.loads(line) | given)


DAMAGE: dict[str, tuple[int, Any]] = {
    "inapplicable": (1, lambda line: line.replace('"verdict":"pass"', '"verdict":"inapplicable"')),
    "NaN seconds": (1, with_field(seconds=float("nan"))),
    "text for seconds": (1, with_field(seconds="NaN")),
    "infinite seconds": (1, with_field(seconds=float("inf"))),
    "negative seconds": (1, with_field(seconds=-1)),
    "deep": (1, lambda line: "[" * 200_000),
    "deep in a field": (1, lambda line: line.replace('"outputs":[', '"outputs":' + "[" * 100_000)),
    "a deep header": (0, lambda line: "[" * 200_000),
    "a deep field of the header": (0, lambda line: '{"schema_version":' + "[" * 100_000),
    "a header of numbers": (0, with_field(adapters={"reference": 1})),
    "no time zone": (0, with_field(started="2026-01-01T00:00:00")),
    "no seed": (0, with_field(seeds=[])),
    "another seed": (0, with_field(seeds=[8])),
    "a number of 5000 digits": (1, lambda line: with_field(outside=5)(line).replace("5", "5" * 5000)),
    "a lone surrogate": (1, lambda line: line.replace('"message":""', '"message":"\\ud800"')),
    "nothing": (1, lambda line: ""),
    "no record": (1, lambda line: "{}"),
    "another key": (1, with_field(trust=True)),
    "two headers": (1, None),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("trusted", [False, True])
def test_a_damaged_line_is_refused_in_a_sentence(tmp_path: Path, lines: list[str], damage: str, trusted: bool) -> None:
    number, change = DAMAGE[damage]
    damaged = [change(line) if change and n == number else line for n, line in enumerate(lines)]
    if change is None:
        damaged.insert(number, lines[0])
    assert damaged != lines
    (tmp_path / "report.jsonl").write_text("\n".join(damaged) + "\n")
    shown = ends(REFUSED, *ONE, "--report", tmp_path, "--resume", *(["--keep-passed"] if trusted else []))
    assert "Traceback" not in shown
    assert "ReportError: " in shown.splitlines()[-1]
    assert (tmp_path / "report.jsonl").read_text() == "\n".join(damaged) + "\n", "nothing is lost"


def test_two_thousand_random_changes_are_read_or_refused(tmp_path: Path, lines: list[str]) -> None:
    """What is read can be drawn: nothing of it ends the page, JUnit or the badge."""
    draw, whole, read = random.Random(16), ("\n".join(lines) + "\n").encode(), 0
    planned = {r["contract"] for r in map(json.loads, lines[1:])}
    values = [b"null", b"-1", b"1e400", b"NaN", b'"\\u001b[2J"', b"[]", b"{}", b"true", b'"<script>"', b"\xff", b"0"]
    for _ in range(2000):
        text = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(text))
            if (colon := text.find(b":", place)) >= 0 and draw.random() < 0.6:
                end = min(n for mark in b",}" if (n := text.find(bytes([mark]), colon)) >= 0)
                text[colon + 1 : end] = draw.choice(values)
            else:
                text[place : place + draw.randint(0, 3)] = draw.choice(values)
        (tmp_path / "report.jsonl").write_bytes(text)
        try:
            kept = read_kept(tmp_path, passed=True)
        except ReportError:
            continue
        if kept is not None:
            read += 1
            footer = Footer(results=len(kept.results), verdicts={}, finished=kept.header.started, digest="")
            cases = [r for r in kept.results.values() if r.operation == "conv.step" and r.contract in planned]
            report = Report(kept.header, cases, [], footer)
            drawn = artefacts.page(report) + artefacts.junit(report) + artefacts.badge(report)
            assert "\x1b" not in drawn
    assert read > 100


def test_a_failure_that_was_found_is_kept_and_its_text_is_cleaned(tmp_path: Path, lines: list[str]) -> None:
    left(tmp_path, lines, verdict="fail", failing="crash", message="\x1b[2J2 pass\nNothing failed.")
    shown = ends(FAILED, *ONE, "--report", tmp_path, "--resume", said="of the interrupted run: 1 kept, 1 run again")
    assert "\x1b[2J" not in shown
    (failed,) = [r for r in read_report(tmp_path).results if r.verdict == "fail"]
    assert (failed.failing, failed.message) == ("crash", r"\x1b[2J2 pass\nNothing failed.")
    assert 'name="resumed" value="1 result kept from an interrupted run' in (tmp_path / "junit.xml").read_text()
    assert "Resumed: 1 result kept from an interrupted run" in (tmp_path / "report.html").read_text()


def test_what_is_kept_is_said_only_of_a_run_that_is_continued(tmp_path: Path) -> None:
    ends(REFUSED, *ONE, "--report", tmp_path, "--keep-passed", said=("--keep-passed", "give --resume"))
    assert not os.listdir(tmp_path)


def test_a_case_whose_verdict_was_unknown_is_run_again(tmp_path: Path, lines: list[str]) -> None:
    left(tmp_path, lines, verdict="unknown", failing="timeout", message="no answer")
    report = reported(0, *ONE[1:], "--resume", report=tmp_path)
    assert {r.verdict for r in report.results if r.case} == {"pass"}
