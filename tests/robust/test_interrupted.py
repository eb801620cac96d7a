"""Ctrl-C at any moment of a run over an old green badge: exit code 130, and the badge says "unfinished" unless the run has
come to its end. Only where a run is refused, or has not begun, the old badge stays."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from conformance.refusal import FAILED, INTERRUPTED
from conformance.report.badge import GREEN
from conformance.report.stream import read_report
from tests.commands import ends, started, verdicts
from tests.robust.hostile.marked import marked
from tests.robust.test_killed import GONE, SLOW, waited

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("heeds_interrupts")]
ONE = ("run", "--adapter", "reference", "--case", "conv.step/b1,c1,w2/plain/normal/s0", "--in-process", "--seed", 7)
MADE = ("report.html", "junit.xml", "badge.svg")
WRITE = "conformance.progress.files", "write"
MOMENTS = {
    "the badge is marked": (*WRITE, 1),
    "the page is marked": (*WRITE, 2),
    "the JUnit file is marked": (*WRITE, 3),
    "the old report is emptied": (*WRITE, 4),
    "adapters load": ("conformance.run.open_adapters", "load", 1),
    "cases are planned": ("conformance.cli", "plan", 1),
    "the report begins": ("conformance.progress.folder:RunFolder", "begin", 1),
    "the report is opened": ("conformance.report.stream:Writer", "__init__", 1),
    "the first case is judged": ("conformance.run.runner", "judge", 1),
    "the second case is judged": ("conformance.run.runner", "judge", 2),
    "a line is written": ("conformance.report.stream:Writer", "add", 1),
    "causes are searched": ("conformance.run.runner:Alone", "diagnose", 1),
    "the report is completed": ("conformance.report.stream:Writer", "close", 1),
    "the page is drawn": ("conformance.report.artefacts", "page", 1),
    "the page is written": (*WRITE, 8),
    "the JUnit file is written": (*WRITE, 9),
    "the badge is written": (*WRITE, 10),
}
"""Where a function is found, its name, and which of its calls is interrupted."""


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that passed."""
    folder = tmp_path_factory.mktemp("green")
    ends(0, *ONE, "--report", folder)
    assert GREEN in (folder / "badge.svg").read_text()
    return folder


def unfinished(folder: Path) -> bool:
    return all("unfinished" in (folder / name).read_text() for name in MADE)


def interrupted(monkeypatch: pytest.MonkeyPatch, owner: str, name: str, number: int, after: bool) -> list[bool]:
    """Ctrl-C before or after the given call of a function; the list says whether it came."""
    whole: Callable[..., Any] = getattr(resolve_name(owner), name)
    calls, came = 0, list[bool]()

    def call_of(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != number:
            return whole(*given, **more)
        came.append(True)
        made = whole(*given, **more) if after else None
        signal.raise_signal(signal.SIGINT)
        return made

    monkeypatch.setattr(resolve_name(owner), name, call_of)
    return came


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_that_was_accepted_leaves_an_unfinished_badge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, green: Path, moment: str, after: bool
) -> None:
    folder = shutil.copytree(green, tmp_path / "report")
    with monkeypatch.context() as patch:
        came = interrupted(patch, *MOMENTS[moment], after)
        ends(INTERRUPTED, *ONE, "--report", folder, said=f"the report in {folder} is unfinished; --resume continues it")
    assert came, "the moment never came"
    assert unfinished(folder)
    assert not list(folder.glob(".unfinished-*"))
    assert (folder / "report.jsonl").read_bytes() != (green / "report.jsonl").read_bytes(), "it is of the run before"
    if after:
        return
    ends(0, *ONE, "--report", folder, "--resume")
    assert verdicts(folder) == verdicts(green)
    assert GREEN in (folder / "badge.svg").read_text()


def test_a_run_into_a_new_folder_leaves_an_unfinished_badge_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        interrupted(patch, "conformance.run.open_adapters", "load", 1, False)
        ends(INTERRUPTED, *ONE, "--report", tmp_path / "new")
    assert unfinished(tmp_path / "new")
    ends(0, *ONE, "--report", tmp_path / "new", "--resume")


def test_a_run_that_has_not_begun_leaves_the_folder_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, green: Path
) -> None:
    folder = shutil.copytree(green, tmp_path / "report")
    interrupted(monkeypatch, "conformance.cli", "read_known", 1, False)
    ends(INTERRUPTED, *ONE, "--report", folder, said=f"interrupted; the run had not begun, and {folder} is as it was")
    assert all((folder / name).read_bytes() == (green / name).read_bytes() for name in ("report.jsonl", *MADE))


def test_a_run_that_has_ended_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, green: Path) -> None:
    folder = shutil.copytree(green, tmp_path / "report")
    interrupted(monkeypatch, "conformance.cli", "show", 1, False)
    ends(INTERRUPTED, *ONE, "--report", folder, said=f"interrupted; the report in {folder} is complete")
    assert read_report(folder).footer.digest in (folder / "badge.svg").read_text()


HANGS = """
import time
from pathlib import Path

Path({loading!r}).touch()
time.sleep(600)
"""


def test_an_adapter_that_hangs_while_it_loads_in_a_process_of_its_own(tmp_path: Path, green: Path) -> None:
    folder, mark = shutil.copytree(green, tmp_path / "report"), f"loading-{os.getpid()}"
    (tmp_path / "hangs.py").write_text(HANGS.format(loading=str(tmp_path / "loading")))
    child = started("run", "--adapter", "hangs:adapter", "--report", folder, folder=tmp_path, mark=mark)
    assert waited((tmp_path / "loading").exists, 300)
    assert unfinished(folder)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == INTERRUPTED
    assert "is unfinished; --resume continues it" in err
    assert unfinished(folder)
    assert waited(lambda: not marked(mark), GONE), f"left: {marked(mark)}"


@pytest.mark.robust
@pytest.mark.timeout(3600)
def test_twenty_moments_of_a_run_with_workers(tmp_path: Path, green: Path) -> None:
    """From the start of the process to behind its end. Each is into the folder of the last one; every third is resumed."""
    folder, draw, ended = shutil.copytree(green, tmp_path / "report"), random.Random(20), 0
    begun = time.monotonic()
    whole = started(*SLOW, "--report", tmp_path / "whole")
    whole.communicate(timeout=600)
    seconds = time.monotonic() - begun
    for number in range(20):
        resumed = ["--resume"] if number % 3 == 2 else []
        before = (folder / "badge.svg").read_bytes()
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        child = started(*SLOW, "--report", folder, *resumed, **pipes)
        time.sleep(draw.uniform(0, 1.1 * seconds))
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=120)
        drawn = (folder / "badge.svg").read_text()
        if "is unfinished; --resume" in err:
            assert child.returncode == INTERRUPTED
            assert unfinished(folder)
        elif (folder / "badge.svg").read_bytes() != before:  # the run has ended, or its process is about to
            ended += 1
            assert child.returncode in (FAILED, INTERRUPTED, -signal.SIGINT), err
            assert read_report(folder).footer.digest in drawn
        else:  # the run has not begun: modules were imported, or options checked
            assert child.returncode in (INTERRUPTED, -signal.SIGINT), err
    assert ended < 20
    again = started(*SLOW, "--report", folder)
    again.communicate(timeout=600)
    assert again.returncode == FAILED
    assert verdicts(folder) == verdicts(tmp_path / "whole")
