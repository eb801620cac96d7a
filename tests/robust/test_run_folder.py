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
from tests.reports import result
from tests.robust.command import FAULTY, call, verdicts

pytestmark = pytest.mark.timeout(900)
GREEN = ("--adapter", "reference", "--operation", "conv.step", "--tier", "smoke", "--in-process")
NAMES = ("report.jsonl", "report.html", "junit.xml", "badge.svg")


@pytest.fixture
def green(tmp_path: Path) -> Path:
    """The folder of a run that passed."""
    assert call("run", *GREEN, "--report", tmp_path).exit_code == 0
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
    assert call("run", "--adapter", "reference", "--subject", "nobody", "--report", green).exit_code == REFUSED
    assert {name: (green / name).read_bytes() for name in NAMES} == before
    new = tmp_path / "one" / "two"
    assert call("run", "--adapter", "reference", "--subject", "nobody", "--report", new).exit_code == REFUSED
    assert not new.parent.exists()


def test_two_runs_into_one_folder_are_one_too_many(green: Path) -> None:
    with RunFolder(green) as folder:
        folder.begin(header("smoke", {"mine": "1"}, "cpu"))
        made = call("run", *GREEN, "--report", green)
        assert made.exit_code == REFUSED
        assert f"another run writes to {green}" in made.output
        folder.add(result(0))


def test_a_folder_that_is_removed_in_the_middle_is_told_and_ends_with_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = RunFolder.add

    def removed(self: RunFolder, line: Any) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        add(self, line)

    monkeypatch.setattr(RunFolder, "add", removed)
    made = call("run", *GREEN, "--report", tmp_path / "report")
    assert made.exit_code == BROKEN
    assert "RunBroken" in made.output
    assert "report.jsonl was removed during the run" in made.output


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

    monkeypatch.setattr(main, "build", broken)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == BROKEN
    assert "ZeroDivisionError: planted" in capsys.readouterr().err


def test_a_run_that_breaks_ends_with_three_and_says_unfinished(green: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.cli.run_plan", lambda *given: 1 // 0)
    made = call("run", *GREEN, "--report", green)
    assert made.exit_code == BROKEN
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
    made = call("run", *GREEN, "--report", tmp_path)
    found = [r for r in read_report(tmp_path).results if r.case]
    assert {(r.verdict, r.failing) for r in found} == {("pass", ""), ("unknown", "suite")}
    assert made.exit_code == BROKEN


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
    assert call(*RESUMED, folder).exit_code == FAILED
    return folder


@pytest.mark.parametrize(("kept", "jobs"), [(0, 1), (0.3, 1), (0.7, 1), (0.6, 2)])
def test_a_resumed_run_ends_with_the_verdicts_of_an_undisturbed_one(
    tmp_path: Path, undisturbed: Path, kept: float, jobs: int
) -> None:
    folder = shutil.copytree(undisturbed, tmp_path / "cut")
    cut(folder, kept)
    again = call(*RESUMED, folder, "--resume", "--jobs", jobs)
    assert again.exit_code == FAILED, again.output
    assert verdicts(folder) == verdicts(undisturbed)


def test_a_failure_that_was_found_stays_though_the_implementation_is_right_by_now(tmp_path: Path) -> None:
    words = ("run", *GREEN, "--report", tmp_path)
    call(*words)
    cut(tmp_path, 0.9)
    path = tmp_path / "report.jsonl"
    path.write_text(path.read_text().replace('"verdict":"pass","failing":""', '"verdict":"fail","failing":"crash"', 1))
    assert call(*words, "--resume").exit_code == FAILED
    assert [r.failing for r in read_report(tmp_path).results if r.verdict == "fail"] == ["crash"]


def test_another_run_is_not_resumed(green: Path) -> None:
    cut(green, 0.5)
    before = (green / "report.jsonl").read_bytes()
    for change in (("--seed", 5), ("--shard", "1of2"), ("--subject", "*")):
        words = [*GREEN, *change] if change[0] != "--subject" else [*GREEN[:3], "conv.scan", *GREEN[4:]]
        made = call("run", *words, "--report", green, "--resume")
        assert made.exit_code == REFUSED, made.output
        assert "the unfinished run had" in made.output
        assert (green / "report.jsonl").read_bytes() == before


def test_a_report_with_a_broken_line_is_not_resumed(green: Path) -> None:
    path = green / "report.jsonl"
    path.write_text(path.read_text().replace('"kind":"result"', '"kind":"nothing"', 1))
    made = call("run", *GREEN, "--report", green, "--resume")
    assert made.exit_code == REFUSED
    assert "line 2, is not a record of a report" in made.output
