"""The line that runs a case again works from where its user stands: the command, the Python and the path at hand."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.report.stream import read_report
from conformance.run.again import command, path_of, python
from tests.commands import PLACES, ROOT, done

WRONG = """
import numpy as np
from ssmspec_ref import ssd
from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject

def scan(S, window, params):
    y, S_next = ssd.scan(S, window, params)
    return (1.5 * y).astype(np.float32), S_next.astype(np.float32)

def adapter():
    return Adapter("wrong", "1", (Subject("kernel", {"ssd.scan": Capability(scan, NumericContract())}),))
"""


def line(folder: Path, path: str) -> str:
    """The line under the failure of a wrong adapter, run in a folder with a PYTHONPATH."""
    words = ["run", "--adapter", "wrong", "--case", "ssd.scan/b1,t2,g1,h1,p1,n1/plain/normal/s0", "--report", "report"]
    done(*words, cwd=folder, env=os.environ | {"PYTHONPATH": path}, code=1)
    (found,) = read_report(folder / "report").diagnoses
    return found.rerun


@pytest.mark.parametrize("inside", [True, False], ids=["in the working folder", "on PYTHONPATH"])
def test_the_line_fails_again_in_a_shell_of_its_own_and_names_the_path_where_it_needs_it(
    tmp_path: Path, inside: bool
) -> None:
    home = tmp_path if inside else tmp_path / "src"
    home.mkdir(exist_ok=True)
    (home / "wrong.py").write_text(WRONG)
    ours = os.pathsep.join(PLACES)
    said = line(tmp_path, ours if inside else os.pathsep.join([ours, "src"]))
    assert said.startswith("PYTHONPATH=") is not inside
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": ours} if inside else {}
    again = subprocess.run(["bash", "-c", said], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 1, again.stderr
    assert "differs" in again.stdout


def test_the_command_is_the_one_that_the_shell_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "ssmspec"
    script.touch(mode=0o755)
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command() == "ssmspec conform"
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert command() == f"{script} conform"


def test_the_python_is_the_one_that_runs_this(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = tmp_path / ".venv" / "bin" / "python", tmp_path / "other" / "python"
    for path in (own, other):
        path.parent.mkdir(parents=True)
        path.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(own))
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(own.parent))
    assert command() == "python -m conformance"
    monkeypatch.setenv("PATH", str(other.parent))
    assert python() == shlex.join([".venv/bin/python"]), "another Python is found under that name"


def test_no_path_is_named_for_a_module_that_is_installed_or_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert [path_of(name) for name in ("reference", "numpy:adapter", "no_such_module:adapter", "")] == [""] * 4
