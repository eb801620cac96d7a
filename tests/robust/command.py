"""The command, called in this process or in one of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from conformance.cli import app
from conformance.report.stream import read_report
from tests.robust.hostile.marked import MARK

ROOT = Path(__file__).parents[2]
FAULTY = ("--adapter", "conformance.faults.recurrences.arithmetic:adapter", "--subject", "[gt]*", "--operation", "ssd.scan")
"""An adapter of which some cases fail, and some pass."""


def call(*words: object, columns: int = 400) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": str(columns)})


def started(*words: object, folder: Path | None = None, mark: str = "", **given: Any) -> subprocess.Popen[str]:
    """`python -m conformance WORDS`; modules of `folder` are found; all that is started carries a mark."""
    places = [*([str(folder)] if folder else []), str(ROOT), str(ROOT / "kernels")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places), "COLUMNS": "400", MARK: mark}
    command = [sys.executable, "-P", "-m", "conformance", *map(str, words)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=environment, **pipes | given)


def done(*words: object, folder: Path | None = None, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    child = started(*words, folder=folder)
    out, err = child.communicate(timeout=timeout)
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def verdicts(folder: Path) -> list[str]:
    """The lines of a report without the seconds."""
    read = read_report(folder)
    plain = [r.model_copy(update={"seconds": 0.0}) for r in read.results]
    return [line.model_dump_json() for line in (*plain, *read.diagnoses)]
