"""A case as a file holds its inputs and outputs, and the script beside it loads them and counts what is wrong."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from conformance.diagnose.dump import dump
from conformance.suite import find
from ssmspec_ref.contract import Capability

from .invented import FP32, NextRowsSnapshot, odd_batch


def test_a_failing_case_is_written_and_its_script_counts_what_is_wrong(tmp_path: Path) -> None:
    specification, case = find("ssd.scan/b3,t2,g1,h2,p2,n2/plain/gentle/s0")
    path = dump(tmp_path / "new", specification, Capability(odd_batch, FP32), case)
    held = np.load(path)
    assert {"in.S", "in.window.x", "in.params.A", "in.params.dt_softplus", "expected.y", "bound.S", "got.y"} <= set(held)
    assert (held["got.y"][-1] == 0).all()
    script = path.with_suffix(".py")
    assert len(script.read_text().splitlines()) <= 10
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert "y (3, 2, 2, 2) wrong in 8 places" in done.stdout
    assert "S (3, 2, 2, 2) wrong in 8 places" in done.stdout


def test_every_window_of_several_is_written(tmp_path: Path) -> None:
    specification, case = find("ssd.verify_snapshots/b2,t2,g1,h1,p1,n1,j2/plain/gentle/s0")
    held = np.load(dump(tmp_path, specification, Capability(NextRowsSnapshot, FP32), case))
    assert {"in.rounds.0.window.x", "in.rounds.1.window.x", "in.rounds.1.advanced", "got.S after window 1"} <= set(held)
