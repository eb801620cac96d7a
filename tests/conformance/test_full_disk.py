"""A full disk ends every command with one line that names the file, and nothing half-written is left."""

import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance import main
from conformance.errors import RunBroken
from conformance.progress import files
from conformance.progress.folder import RunFolder
from conformance.report.stream import header
from ssmspec_fast.cli import traffic

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "the file")


SMOKE = "conform run --adapter reference --subject ssd* --operation ssd.step --tier smoke --report "


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """The one line of a command that is refused because something cannot be written."""

    def ran(words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["ssmspec", *words.split()])
        with pytest.raises(SystemExit, match=r"^2$"):
            main.main()
        text = capfd.readouterr().err
        assert "Traceback" not in text
        (line,) = [line for line in text.splitlines() if "cannot be written" in line]
        return line

    return ran


def refuse(*_: Any, **__: Any) -> None:
    raise FULL


def test_a_report_that_does_not_fit_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Any) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "report.jsonl").write_text("earlier")
    monkeypatch.setattr(os, "fsync", refuse)
    said = f"{tmp_path / 'r' / 'badge.svg'} cannot be written (No space left on device)"
    assert said in refused(f"{SMOKE}{tmp_path / 'r'}")
    assert (tmp_path / "r" / "report.jsonl").read_text() == "earlier"


@pytest.mark.parametrize("fits", [0, 3], ids=["_mark", "begin"])
def test_a_run_that_cannot_start_names_the_folder_and_leaves_none(
    fits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Any
) -> None:
    """The disk is full when the folder is marked as unfinished, or when the report is begun after that. An earlier run's page
    comes back from memory, if a file fits again."""
    synced, written = os.fsync, 0

    def full(handle: int) -> None:
        nonlocal written
        if stat.S_ISREG(os.fstat(handle).st_mode):
            written += 1
            if written > fits:
                refuse()
        synced(handle)

    monkeypatch.setattr(os, "fsync", full)
    if not fits:
        (tmp_path / "r").mkdir()
        (tmp_path / "r" / "report.html").write_text("earlier")
    assert refused(f"{SMOKE}{tmp_path / 'r'}").startswith("ReportError: ")
    assert (tmp_path / "r").exists() == (not fits)
    assert fits or (tmp_path / "r" / "report.html").read_text() == "earlier"
    assert not [left for left in tmp_path.rglob("*") if left.name.startswith(files.NEW)]


def test_a_page_that_does_not_fit_ends_the_run_with_its_name(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "r") as folder:
        folder.begin(header("smoke", {}, "cpu"))
        with pytest.raises(RunBroken, match=r"the file cannot be written .*; free some space, or name another folder"):
            folder.finish([], [], refuse)


def test_a_disk_that_is_full_between_two_files_leaves_no_complete_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(folder: Path, report: Any) -> None:
        files.write(folder / "report.html", "complete")
        monkeypatch.setattr(os, "fsync", refuse)
        files.write(folder / "junit.xml", "complete")

    with RunFolder(tmp_path) as folder:
        folder.begin(header("smoke", {}, "cpu"))
        with pytest.raises(RunBroken, match=r"junit\.xml cannot be written"):
            folder.finish([], [], half)
    assert not (tmp_path / "report.html").exists()
    assert all("unfinished" in (tmp_path / name).read_text() for name in ("junit.xml", "badge.svg"))


def test_a_starter_that_does_not_fit_is_refused_and_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Any
) -> None:
    def half(path: Path, text: str, **_: Any) -> None:
        path.write_bytes(text[:10].encode())
        refuse()

    monkeypatch.setattr(Path, "write_text", half)
    assert "give a file on a disk with space" in refused(f"conform init {tmp_path / 'mine.py'}")
    assert list(tmp_path.iterdir()) == []


def test_times_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Any) -> None:
    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(traffic, "summary", lambda _: {})
    monkeypatch.setattr(traffic, "table", lambda _: "")
    monkeypatch.setattr(traffic, "_replay", lambda *_: type("Found", (), {"served": []})())
    assert "times.json" in refused(f"traffic --tiny --requests 1 --tokens 2 --out {tmp_path / 'times.json'}")


def test_any_other_command_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch, refused: Any) -> None:
    monkeypatch.setattr("conformance.explain.commands.explain", refuse)
    assert refused("conform explain ssd.step") == (
        "OptionError: the file cannot be written (No space left on device); free some space, or name a folder on another disk"
    )
