"""A full disk ends every command with one line that names the file, and nothing half-written is left."""

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance import main
from conformance.errors import RunBroken
from conformance.progress.folder import RunFolder
from conformance.report.stream import header
from ssmspec_fast.cli import traffic

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "the file")


def ran(words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["ssmspec", *words.split()])
    with pytest.raises(SystemExit) as end:
        main.main()
    return int(str(end.value.code))


def refuse(*_: Any, **__: Any) -> None:
    raise FULL


def one_line(text: str) -> str:
    assert "Traceback" not in text
    (line,) = [line for line in text.splitlines() if "cannot be written" in line]
    return line


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_report_that_does_not_fit_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "report.jsonl").symlink_to("/dev/full")
    words = f"conform run --adapter reference --subject ssd* --operation ssd.step --tier smoke --report {tmp_path / 'r'}"
    assert ran(words, monkeypatch) == 2
    assert f"{tmp_path / 'r'} cannot be written (No space left on device)" in one_line(capfd.readouterr().err)


@pytest.mark.parametrize("part", ["_mark", "begin"])
def test_a_run_that_cannot_start_names_the_folder_and_leaves_none(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def half(path: Path, content: bytes) -> None:
        path.with_name(f"{path.name}.new").write_bytes(content[:5])
        refuse()

    monkeypatch.setattr("conformance.progress.folder._replace", half)
    if part == "_mark":  # an earlier run's page is marked as unfinished first
        (tmp_path / "r").mkdir()
        (tmp_path / "r" / "report.html").write_text("earlier")
    words = f"conform run --adapter reference --subject ssd* --operation ssd.step --tier smoke --report {tmp_path / 'r'}"
    assert ran(words, monkeypatch) == 2
    assert one_line(capfd.readouterr().err).startswith("ReportError: ")
    assert (tmp_path / "r").exists() == (part == "_mark")
    assert part != "_mark" or (tmp_path / "r" / "report.html").read_text() == "earlier"


def test_a_page_that_does_not_fit_ends_the_run_with_its_name(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "r") as folder:
        folder.begin(header("smoke", {}, "cpu"))
        with pytest.raises(RunBroken, match=r"the file cannot be written .*; free some space, or name another folder"):
            folder.finish([], [], refuse)


def test_a_starter_that_does_not_fit_is_refused_and_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def half(path: Path, text: str, **_: Any) -> None:
        path.write_bytes(text[:10].encode())
        refuse()

    monkeypatch.setattr(Path, "write_text", half)
    assert ran(f"conform init {tmp_path / 'mine.py'}", monkeypatch) == 2
    assert "give a file on a disk with space" in one_line(capfd.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_times_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(traffic, "_replay", lambda *_: None)
    monkeypatch.setattr(traffic, "summary", lambda _: {})
    monkeypatch.setattr(traffic, "table", lambda _: "")
    monkeypatch.setattr(traffic, "_replay", lambda *_: type("Found", (), {"served": []})())
    assert ran(f"traffic --tiny --requests 1 --tokens 2 --out {tmp_path / 'times.json'}", monkeypatch) == 2
    assert "times.json" in one_line(capfd.readouterr().err)


def test_any_other_command_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("conformance.cli.explain", refuse)
    assert ran("conform explain ssd.step", monkeypatch) == 2
    assert one_line(capfd.readouterr().err) == (
        "OptionError: the file cannot be written (No space left on device); free some space, or name a folder on another disk"
    )
