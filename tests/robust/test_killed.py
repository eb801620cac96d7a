"""What is killed in the middle: the judge at any moment, a worker, its child. Nothing green is left, nothing is lost."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conformance.errors import ReportError
from conformance.isolation import warden
from conformance.refusal import FAILED
from conformance.report.badge import GREEN, RED
from conformance.report.stream import LINE, Result, read_report
from tests.commands import ROOT, done, ends, started, verdicts
from tests.robust.hostile.marked import marked
from tests.robust.on_ray import runs

pytestmark = pytest.mark.timeout(900)
SLOW = ("run", "--adapter", "tests.robust.slow:adapter", "--tier", "smoke", "--seed", 7)
GONE = 10.0
"""Seconds after which nothing of a killed run may be left."""


def waited(true: object, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that passed."""
    folder = tmp_path_factory.mktemp("green")
    words = ("run", "--adapter", "reference", "--operation", "conv.step", "--tier", "smoke", "--in-process")
    ends(0, *words, "--report", folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], float]:
    """The verdicts of a run that nobody kills, and the seconds from its taking the folder to its end."""
    folder = tmp_path_factory.mktemp("undisturbed")
    child = started(*SLOW, "--report", folder / "report")
    waited(lambda: (folder / "report" / ".lock").exists(), 300)
    begun = time.monotonic()
    child.communicate()
    assert child.returncode == FAILED
    found = verdicts(folder / "report")
    assert {"pass", "fail"} <= {Result.model_validate_json(line).verdict for line in found if '"kind":"result"' in line}
    return found, time.monotonic() - begun


def failures(report: Path) -> set[str]:
    """The cases that failed, of a report that may be cut."""
    lines = [LINE.validate_json(line) for line in report.read_bytes().split(b"\n")[:-1]]
    return {line.case for line in lines if isinstance(line, Result) and line.verdict == "fail"}


def whole(report: Path) -> bool:
    """Whether a run has come to its end."""
    try:
        return bool(read_report(report))
    except ReportError:
        return False


def killed(folder: Path, green: Path, number: int, seconds: float) -> tuple[Path, set[str]]:
    """A run that is killed at a moment of its own, over artefacts of one that passed; the failures that it had written."""
    report, mark = folder / str(number), f"killed-{number}-{os.getpid()}"
    shutil.copytree(green, report)
    jobs = 1 + number % 2
    child = started(
        *SLOW, "--report", report, "--jobs", jobs, mark=mark, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert waited(lambda: "unfinished" in (report / "badge.svg").read_text(), 300)
    time.sleep(random.Random(number).uniform(0, seconds))
    child.kill()
    child.wait()
    assert waited(lambda: not marked(mark), GONE), f"left: {marked(mark)}"
    drawn, suites = (report / "badge.svg").read_text(), ElementTree.parse(report / "junit.xml").getroot()
    assert RED in drawn
    assert GREEN not in drawn
    assert int(suites.attrib["errors"]) + int(suites.attrib["failures"]) > 0
    if not whole(report):
        assert "unfinished" in drawn
        assert "unfinished" in (report / "report.html").read_text()
    return report, failures(report / "report.jsonl")


@pytest.mark.parametrize("moments", [4, pytest.param(50, marks=(pytest.mark.robust, pytest.mark.timeout(1800)))])
def test_a_judge_that_is_killed_at_any_moment_leaves_nothing_green_nothing_alive_and_nothing_lost(
    tmp_path: Path, green: Path, undisturbed: tuple[list[str], float], moments: int
) -> None:
    wanted, seconds = undisturbed

    def one(number: int) -> tuple[bool, list[str], bool]:
        report, found = killed(tmp_path, green, number, 1.1 * seconds)
        ended = whole(report)
        done(*SLOW, "--report", report, "--resume", code=FAILED)
        return ended, verdicts(report), found <= failures(report / "report.jsonl")

    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(one, range(moments)))
    assert all(lines == wanted for _, lines, _ in ends)
    assert all(kept for *_, kept in ends)
    assert not all(ended for ended, *_ in ends), "some were killed before their end"


def test_what_an_adapter_has_detached_ends_with_a_judge_that_is_killed(tmp_path: Path) -> None:
    mark, report = f"detached-{os.getpid()}", tmp_path / "report"
    name = "tests.robust.hostile.corpus:hangs_beside_a_child"
    child = started("run", "--adapter", name, "--operation", "ssd.scan", "--report", report, mark=mark)

    def detached() -> list[int]:
        return [process for process in marked(mark) if leads(process)]

    assert waited(lambda: len(detached()) > 2, 300), "the warden, the worker and what it has detached"
    child.kill()
    child.communicate()
    assert waited(lambda: not marked(mark), GONE), f"left: {marked(mark)}"


def leads(process: int) -> bool:
    """Whether a process has a session that is not the one of these tests."""
    try:
        return os.getsid(process) != os.getsid(0)
    except ProcessLookupError:
        return False


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """A run of an adapter that is right, in the middle of its cases."""
    mark, report = f"worker-{os.getpid()}-{time.monotonic_ns()}", tmp_path / "report"
    os.environ["SSMSPEC_RIGHT"] = "1"
    child = started(*SLOW, "--report", report, mark=mark)
    del os.environ["SSMSPEC_RIGHT"]
    assert waited(lambda: report.exists() and (report / "report.jsonl").exists(), 300)
    yield child, mark, report
    child.kill()
    child.wait()


def test_a_worker_that_is_killed_fails_its_case_and_the_run_ends(run: tuple[subprocess.Popen[str], str, Path]) -> None:
    child, mark, report = run
    workers = [process for process in marked(mark) if process != child.pid]
    parents = dict(warden.living())
    os.kill(next(process for process in workers if parents.get(process) in workers), signal.SIGKILL)
    out, err = child.communicate(timeout=300)
    assert child.returncode == FAILED, err
    ended = [r for r in read_report(report).results if r.case and r.verdict != "pass"]
    assert [(r.verdict, r.failing) for r in ended] == [("fail", "crash")]
    assert "the process was ended by SIGKILL" in ended[0].message
    assert "1 fail" in out
    assert marked(mark) == []


@pytest.mark.parametrize("moments", [pytest.param(50, marks=pytest.mark.robust)])
def test_workers_that_are_killed_at_any_moment_fail_their_cases_and_the_run_ends(tmp_path: Path, moments: int) -> None:
    """Now the worker, now its warden, whose child it is: each time one case says that it died, and every other one passes."""
    mark, report, draw = f"workers-{os.getpid()}", tmp_path / "report", random.Random(moments)
    name = runs.adapter(tmp_path, "right", subjects=14)
    words = ("run", "--adapter", name, "--tier", "smoke", "--seed", 7, "--report", report)
    with runs.held(tmp_path):  # no call returns, so that none is over before it is killed
        child = started(*words, folder=tmp_path, mark=mark)
        assert waited(lambda: (report / "report.jsonl").exists(), 300)
        for _ in range(moments):
            assert waited(lambda: child.poll() is not None or len(alive(mark, child)) > 1, 300)
            assert child.poll() is None, "there are too few cases"
            time.sleep(draw.uniform(0, 0.6))
            there = alive(mark, child)
            os.kill(draw.choice(sorted(there)), signal.SIGKILL)
            assert waited(lambda gone=there: not gone & alive(mark, child), GONE), "a worker ends with its warden"
    _, err = child.communicate(timeout=300)
    assert child.returncode == FAILED, err
    ended = [r for r in read_report(report).results if r.case]
    died(ended, moments)
    hidden = next(r for r in ended if r.verdict == "fail")
    with pytest.raises(AssertionError):  # planted: one that died is green
        died([r.model_copy(update={"verdict": "pass", "failing": ""}) if r is hidden else r for r in ended], moments)
    assert marked(mark) == []


def died(ended: list[Result], moments: int) -> None:
    """For each kill one case says so, and all others passed."""
    failed = [r for r in ended if r.verdict != "pass"]
    assert {(r.verdict, r.failing) for r in failed} == {("fail", "crash")}
    assert all("ended by SIGKILL" in r.message for r in failed)
    assert len(failed) == moments < len(ended)


def alive(mark: str, judge: "subprocess.Popen[str]") -> set[int]:
    """The processes that a judge has started."""
    return {*marked(mark)} - {judge.pid}


def test_a_program_that_is_killed_fails_its_case_and_the_run_ends(tmp_path: Path) -> None:
    source = (ROOT / "docs" / "examples" / "program.py").read_text()
    calls = '        case "call":\n'
    assert calls in source
    called = tmp_path / "called"
    first = f"if not os.path.exists({str(called)!r}): open({str(called)!r}, 'w').close(), time.sleep(600)"
    held = f"{calls}            import os, time\n            {first}\n"
    (tmp_path / "p.py").write_text(source.replace(calls, held))
    mark, report = f"program-{os.getpid()}", tmp_path / "report"
    words = ("run", "--program", f"{sys.executable} {tmp_path / 'p.py'}", "--operation", "ssd.step", "--tier", "smoke")
    child = started(*words, "--report", report, mark=mark)
    assert waited(called.exists, 300)
    (program,) = [p for p in marked(mark) if b"p.py" in Path(f"/proc/{p}/cmdline").read_bytes() and is_program(p)]
    os.kill(program, signal.SIGKILL)
    _, err = child.communicate(timeout=300)
    assert child.returncode == FAILED, err
    ended = [r for r in read_report(report).results if r.case and r.verdict != "pass"]
    assert [(r.verdict, r.failing) for r in ended] == [("fail", "error")]
    assert "the program was ended by signal 9" in ended[0].message
    assert marked(mark) == []


def is_program(process: int) -> bool:
    return b"conformance" not in Path(f"/proc/{process}/cmdline").read_bytes()
