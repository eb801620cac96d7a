"""A wrong word is told in one line with the nearest right one; what was not run is short, and counted in cases."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.report.stream import read_report

ROOT = Path(__file__).parents[2]
MINE = """
import numpy as np
from ssmspec_ref import conv, ssd
from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject

def commit(M, u, advanced):
    return conv.commit(M, u, advanced).astype(np.float32)

def scan(S, window, params):
    y, S_next = ssd.scan(S, window, params)
    return y.astype(np.float32), S_next.astype(np.float32)

def adapter():
    narrow = Limits(options={"advanced": ("some",)}, sizes={}, reason="nothing else is needed")
    kinds = Limits(options=OPTIONS, reason="no such option")
    first = Subject("window", {"conv.commit": Capability(commit, NumericContract(), narrow)}, absent={"ssd": "not written"})
    second = Subject("scan", {"ssd.scan": Capability(scan, NumericContract(), kinds)})
    return Adapter("mine", "0.1", (first, second))

OPTIONS = {}
"""


def ssmspec(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")]), "COLUMNS": "300"}
    command = [sys.executable, "-c", "from conformance.main import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("conform", "run", "--adapter", "referense"), "(did you mean 'reference'?)"),
        (("conform", "run", "--adapter", "mine:adapter", "--subject", "windw"), "(did you mean 'window'?)"),
        (("conform", "run", "--adapter", "mine:adapter", "--operation", "ssd.scna"), "(did you mean 'ssd.scan'?)"),
        (("conform", "run", "--adapter", "mine:adapter", "--device", "gpu"), "give cpu, cuda, cuda:1 or interpreter"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_a_wrong_word_is_one_line_with_the_nearest_right_one(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    done = ssmspec(tmp_path, *words)
    assert done.returncode == 2, done.stderr
    told = [line for line in done.stderr.splitlines() if not line.startswith("loading ")]
    assert len(told) == 1, told
    assert said in told[0]
    assert "Traceback" not in done.stderr


def test_a_limit_that_is_nearly_one_is_told_with_the_right_value(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE.replace("OPTIONS = {}", 'OPTIONS = {"softplus": ("onn",)}'))
    done = ssmspec(tmp_path, "conform", "run", "--adapter", "mine:adapter", "--tier", "smoke")
    assert "limits softplus=onn, which no case has (did you mean 'on'?)" in done.stderr


def test_what_was_not_run_is_short_and_counted_in_cases(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    done = ssmspec(tmp_path, "conform", "run", "--adapter", "mine:adapter", "--tier", "smoke")
    assert done.returncode == 0, done.stdout + done.stderr
    absent = [line for line in done.stdout.splitlines() if line.startswith("mine: ") and " tested; " in line]
    assert len(absent) == 1, "one line for what no subject offers"
    results = read_report(tmp_path / "conformance-report").results
    (partly,) = [r for r in results if r.outside]
    assert (partly.operation, partly.verdict) == ("conv.commit", "inapplicable")
    assert 0 < partly.outside < 10
    assert f"inapplicable: {partly.outside} case" in done.stdout
    assert "about " in done.stderr, "an estimate, off a terminal too"
