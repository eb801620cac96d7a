"""The command, called in this process or in one of its own: how it ends, what it says, what it leaves."""

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from typer import Typer
from typer.testing import CliRunner, Result

from conformance.cli import app as conform
from conformance.report.stream import Report, read_report
from tests.robust.hostile.marked import MARK

ROOT = Path(__file__).parents[1]
PLACES = [str(ROOT), str(ROOT / "kernels")]
FAULTY = ("--adapter", "conformance.faults.recurrences.arithmetic:adapter", "--subject", "[gt]*", "--operation", "ssd.scan")
"""An adapter of which some cases fail, and some pass."""


def call(*words: object, columns: int = 400, app: Typer = conform) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": str(columns)})


def holds(text: str, said: str | Collection[str]) -> str:
    """The text, which has to hold what is said."""
    assert [one for one in ([said] if isinstance(said, str) else said) if one not in text] == [], text
    return text


def ends(code: int, *words: object, said: str | Collection[str] = (), **given: Any) -> str:
    """What a command prints that is called here, ends with a code and says something."""
    made = call(*words, **given)
    assert made.exit_code == code, made.output
    return holds(made.output, said)


def reported(code: int, *words: object, report: Path, said: str | Collection[str] = ()) -> Report:
    """The report of `conform run WORDS`, which ends with a code and says something."""
    ends(code, "run", *words, "--report", report, said=said)
    return read_report(report)


def started(*words: object, folder: Path | None = None, mark: str = "", **given: Any) -> subprocess.Popen[str]:
    """`python -m conformance WORDS`; modules of `folder` are found; all that is started carries a mark."""
    places = [*([str(folder)] if folder else []), *PLACES]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places), "COLUMNS": "400", MARK: mark}
    command = [sys.executable, "-P", "-m", "conformance", *map(str, words)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **{"env": environment} | pipes | given)


def done(
    *words: object, code: int | None = None, said: str | Collection[str] = (), timeout: float = 600, **given: Any
) -> subprocess.CompletedProcess[str]:
    """The same at its end: with a code, and what it says, where they are named."""
    child = started(*words, **given)
    out, err = child.communicate(timeout=timeout)
    assert code is None or child.returncode == code, out + err
    holds(out + err, said)
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def verdicts(folder: Path) -> list[str]:
    """The lines of a report without the seconds."""
    return without_seconds(read_report(folder))


def without_seconds(read: Any) -> list[str]:
    """The lines of a report, or of what a run has found, without the seconds."""
    plain = [r.model_copy(update={"seconds": 0.0}) for r in read.results]
    return [line.model_dump_json() for line in (*plain, *read.diagnoses)]
