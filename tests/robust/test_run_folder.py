"""A run owns its folder: nothing in it looks green before the run has ended, nobody else writes, nothing found is lost."""

import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from conformance import main
from conformance.errors import ReportError, RunBroken
from conformance.progress.folder import RunFolder
from conformance.refusal import BROKEN, FAILED, REFUSED
from conformance.report.stream import header, read_report
from tests.commands import FAULTY, ends, reported, verdicts
from tests.reports import result

pytestmark = pytest.mark.timeout(900)
GREEN = ("--adapter", "reference", "--operation", "conv.step", "--tier", "smoke", "--in-process")
NAMES = ("report.jsonl", "report.html", "junit.xml", "badge.svg")


@pytest.fixture
def green(tmp_path: Path) -> Path:
    """The folder of a run that passed."""
    ends(0, "run", *GREEN, "--report", tmp_path)
    return tmp_path


def unfinished(folder: Path) -> bool:
    """Whether no file of a folder looks like that of a run that passed."""
    with pytest.raises(ReportError):
        read_report(folder)
    suite = ElementTree.parse(folder / "junit.xml").getroot()
    marked = all("unfinished" in (folder / name).read_text() for name in NAMES[1:])
    return marked and suite.attrib["errors"] == "1"


def test_old_artefacts_are_marked_as_soon_as_a_run_takes_the_folder(green: Path) -> None:
    with RunFolder(green):
        assert unfinished(green)


def test_what_a_run_that_is_ended_leaves_does_not_look_green(green: Path) -> None:
    with RunFolder(green) as folder:
        folder.begin(header("smoke", {"mine": "1"}, "cpu", seeds=(3,)))
        folder.add(result(0))
    assert unfinished(green)


def test_a_run_that_is_refused_before_its_first_case_leaves_the_folder_as_it_was(green: Path, tmp_path: Path) -> None:
    before = {name: (green / name).read_bytes() for name in NAMES}
    new = tmp_path / "one" / "two"
    for folder in (green, new):
        ends(REFUSED, "run", "--adapter", "reference", "--in-process", "--subject", "nobody", "--report", folder)
    assert {name: (green / name).read_bytes() for name in NAMES} == before
    assert not new.parent.exists()


def test_two_runs_into_one_folder_are_one_too_many(green: Path) -> None:
    with RunFolder(green) as folder:
        folder.begin(header("smoke", {"mine": "1"}, "cpu"))
        ends(REFUSED, "run", *GREEN, "--report", green, said=f"another run writes to {green}")
        folder.add(result(0))


def test_a_folder_that_is_removed_in_the_middle_is_told_and_ends_with_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = RunFolder.add

    def removed(self: RunFolder, line: Any) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        add(self, line)

    monkeypatch.setattr(RunFolder, "add", removed)
    said = "RunBroken", "report.jsonl was removed during the run"
    ends(BROKEN, "run", *GREEN, "--report", tmp_path / "report", said=said)


def test_a_report_that_is_replaced_in_the_middle_is_told(green: Path) -> None:
    with RunFolder(green) as folder:
        folder.begin(header("smoke", {"mine": "1"}, "cpu"))
        shutil.copy(green / "report.jsonl", green / "copy")
        (green / "copy").replace(green / "report.jsonl")
        with pytest.raises(RunBroken, match="was replaced"):
            folder.add(result(0))


def test_an_error_that_nobody_foresaw_ends_with_three(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def broken() -> Any:
        raise ZeroDivisionError("planted")

    with pytest.raises(SystemExit) as ended:
        main.main(broken)
    assert ended.value.code == BROKEN
    assert "ZeroDivisionError: planted" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["plan", "run_plan"])
def test_a_run_that_breaks_ends_with_three_and_says_unfinished(
    green: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(f"conformance.cli.{place}", lambda *given: 1 // 0)
    ends(BROKEN, "run", *GREEN, "--report", green)
    assert unfinished(green)


def test_a_case_on_which_the_suite_breaks_is_unknown_and_the_run_goes_on_and_ends_with_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conformance.judge import verdict as judging

    compare = judging.compare

    def broken(expected: Any, *given: Any) -> Any:
        if expected[0].value.shape[0] == 1:
            raise AssertionError("planted")
        return compare(expected, *given)

    monkeypatch.setattr(judging, "compare", broken)
    found = reported(BROKEN, *GREEN, report=tmp_path).results
    assert {(r.verdict, r.failing) for r in found if r.case} == {("pass", ""), ("unknown", "suite")}


def cut(folder: Path, share: float) -> None:
    """The report as a run leaves it that is ended while it writes the line after a share of its lines."""
    path = folder / "report.jsonl"
    whole = path.read_text().splitlines(keepends=True)
    lines = int(share * len(whole))
    path.write_text("".join(whole[:lines]) + whole[lines][:40])


RESUMED = ("run", *FAULTY, "--tier", "smoke", "--seed", 7, "--report")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    ends(FAILED, *RESUMED, folder)
    return folder


@pytest.mark.parametrize(("kept", "jobs"), [(0, 1), (0.3, 1), (0.7, 1), (0.6, 2)])
def test_a_resumed_run_ends_with_the_verdicts_of_an_undisturbed_one(
    tmp_path: Path, undisturbed: Path, kept: float, jobs: int
) -> None:
    folder = shutil.copytree(undisturbed, tmp_path / "cut")
    cut(folder, kept)
    ends(FAILED, *RESUMED, folder, "--resume", "--jobs", jobs)
    assert verdicts(folder) == verdicts(undisturbed)


def test_a_failure_that_was_found_stays_though_the_implementation_is_right_by_now(green: Path) -> None:
    cut(green, 0.9)
    path = green / "report.jsonl"
    path.write_text(path.read_text().replace('"verdict":"pass","failing":""', '"verdict":"fail","failing":"crash"', 1))
    results = reported(FAILED, *GREEN, "--resume", report=green).results
    assert [r.failing for r in results if r.verdict == "fail"] == ["crash"]


def test_another_run_is_not_resumed(green: Path) -> None:
    cut(green, 0.5)
    before = (green / "report.jsonl").read_bytes()
    for change in (("--seed", 5), ("--shard", "1of2"), ("--subject", "*")):
        words = [*GREEN, *change] if change[0] != "--subject" else [*GREEN[:3], "conv.scan", *GREEN[4:]]
        ends(REFUSED, "run", *words, "--report", green, "--resume", said="the unfinished run had")
        assert (green / "report.jsonl").read_bytes() == before


def test_a_report_with_a_broken_line_is_not_resumed(green: Path) -> None:
    path = green / "report.jsonl"
    path.write_text(path.read_text().replace('"kind":"result"', '"kind":"nothing"', 1))
    ends(REFUSED, "run", *GREEN, "--report", green, "--resume", said="line 2, is not a record of a report")
