"""A FIFO, a link or a folder where a file of a report should be: no command waits, or writes elsewhere; each says what lies
there. What an adapter puts there during a run is in `hostile/folders.py`."""

import os
from pathlib import Path
from typing import Any

import pytest

from conformance.errors import RunBroken
from conformance.progress.folder import RunFolder
from conformance.refusal import REFUSED
from conformance.report import artefacts
from conformance.report.stream import header
from tests.commands import ends, reported
from tests.reports import result, write

pytestmark = pytest.mark.timeout(240)
ONE = ("run", "--adapter", "reference", "--case", "conv.step/b1,c1,w2/plain/normal/s0", "--in-process")
MADE = ("report.html", "junit.xml", "badge.svg")
NAMES = ("report.jsonl", *MADE)
ODD = pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["FIFO", "device"])


def unloaded(*given: Any, **more: Any) -> None:
    pytest.fail("an adapter was loaded")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_refused_before_it_loads_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, make: Any
) -> None:
    for other in NAMES:
        make(tmp_path / other) if other == name else (tmp_path / other).write_text("earlier")
    monkeypatch.setattr("conformance.run.open_adapters.load", unloaded)
    said = f"{tmp_path / name} cannot be replaced by a file (it is not a regular file); remove it"
    ends(REFUSED, *ONE, "--report", tmp_path, said=said)
    assert all((tmp_path / other).read_text() == "earlier" for other in NAMES if other != name)


def test_links_are_replaced_and_come_back_where_a_run_is_refused(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "report"
    elsewhere.write_text("elsewhere")
    folder.mkdir()
    for name in NAMES:
        (folder / name).symlink_to("../elsewhere")
    ends(REFUSED, "run", "--adapter", "reference", "--in-process", "--subject", "nobody", "--report", folder)
    assert {name: os.readlink(folder / name) for name in NAMES} == dict.fromkeys(NAMES, "../elsewhere")
    with RunFolder(folder):
        assert all("unfinished" in (folder / name).read_text() for name in MADE)
    assert reported(0, *ONE[1:], report=folder).footer.verdicts["pass"] == 2
    assert not any((folder / name).is_symlink() for name in NAMES)
    assert elsewhere.read_text() == "elsewhere"


@pytest.mark.parametrize("name", MADE)
def test_a_folder_that_appears_in_the_middle_ends_with_three_and_nothing_is_green(tmp_path: Path, name: str) -> None:
    with RunFolder(tmp_path) as folder:
        folder.begin(header("smoke", {"mine": "1"}, "cpu"))
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir()
        with pytest.raises(RunBroken, match=f"{name} cannot be written"):
            folder.finish([result(0)], [], artefacts.write)
    assert all("unfinished" in (tmp_path / other).read_text() for other in MADE if other != name)


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("elsewhere")
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / ".lock").symlink_to("../elsewhere")
    ends(REFUSED, *ONE, "--report", folder)
    assert (tmp_path / "elsewhere").read_text() == "elsewhere"


@pytest.mark.parametrize("words", [("report",), ("page",), ("compare", "OTHER"), ("compare",), ("merge", "NEW")])
@ODD
def test_a_command_does_not_read_one(tmp_path: Path, words: tuple[str, ...], make: Any) -> None:
    write(tmp_path / "other.jsonl", [result(0)])
    (tmp_path / "report").mkdir()
    make(tmp_path / "report" / "report.jsonl")
    given = [tmp_path / "other.jsonl" if word == "OTHER" else tmp_path / "new" if word == "NEW" else word for word in words]
    given += [tmp_path / "report", *([tmp_path / "report"] if words == ("compare",) else [])]
    ends(REFUSED, *given, said="report.jsonl cannot be read (it is not a regular file)")


def test_a_badge_that_is_none_is_told_and_written_again(tmp_path: Path) -> None:
    write(tmp_path / "report.jsonl", [result(0)])
    os.mkfifo(tmp_path / "badge.svg")
    ends(0, "report", tmp_path, said="badge.svg cannot be read (it is not a regular file)")
    ends(0, "page", tmp_path)
    assert "badge.svg" not in ends(0, "report", tmp_path)


def test_a_report_that_is_a_fifo_is_not_resumed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "report.jsonl")
    said = "report.jsonl cannot be read (it is not a regular file); run without --resume"
    ends(REFUSED, *ONE, "--report", tmp_path, "--resume", said=said)


@ODD
def test_a_list_of_known_failures_is_a_file(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "known.toml")
    for words in ((*ONE, "--report", tmp_path / "r"), ("merge", tmp_path / "m", write(tmp_path / "r.jsonl", [result(0)]))):
        ends(REFUSED, *words, "--known", tmp_path / "known.toml", said="is not a regular file")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("text", [b"known = 5", b"known = [5]", b"\xff", b"known = " + b"[" * 100_000])
def test_a_list_that_is_damaged_is_refused_by_its_name(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "known.toml").write_bytes(text)
    words = (*ONE, "--report", tmp_path / "r", "--known", tmp_path / "known.toml")
    ends(REFUSED, *words, said="known.toml cannot be read as a list of known failures")
