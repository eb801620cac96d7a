"""`--failed` runs again what failed last time, and nothing else."""

import subprocess
from pathlib import Path

import pytest

from conformance.report.stream import read_report
from tests.commands import done

SOURCE = """
import numpy as np
from ssmspec_ref import ssd
from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject

def scan(S, window, params):
    y, S_next = ssd.scan(S, window, params)
    wrong = window.z is not None and WRONG
    return ((1.5 if wrong else 1) * y).astype(np.float32), S_next.astype(np.float32)

def step(S, token, params):
    y, S_next = ssd.step(S, token, params)
    return y.astype(np.float32), S_next.astype(np.float32)

def adapter():
    capabilities = {"ssd.scan": Capability(scan, NumericContract()), "ssd.step": Capability(step, NumericContract())}
    return Adapter("mine", "1", (Subject("kernel", capabilities),))
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return done("run", "--adapter", "mine", "--explain", "none", *words, folder=folder, cwd=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run of a wrong adapter has failed."""
    made = tmp_path_factory.mktemp("failed")
    (made / "mine.py").write_text(SOURCE.replace("WRONG", "True"))
    assert run(made, "--tier", "smoke").returncode == 1
    return made


def test_what_failed_is_run_again_until_it_passes(folder: Path) -> None:
    first = read_report(folder / "conformance-report")
    failed = [result.case for result in first.results if result.verdict == "fail"]
    assert 0 < len(failed) < len([result for result in first.results if result.case])
    assert run(folder, "--failed").returncode == 1
    again = read_report(folder / "conformance-report" / "failed")
    assert [result.case for result in again.results] == failed
    assert again.header.only == f"{len(failed)} that failed before"
    assert again.header.seeds == first.header.seeds
    (folder / "mine.py").write_text(SOURCE.replace("WRONG", "False"))
    made = run(folder, "--failed")
    assert made.returncode == 0, made.stdout + made.stderr
    verdicts = [result.verdict for result in read_report(folder / "conformance-report" / "failed").results]
    assert verdicts == ["pass"] * len(failed)
    made = run(folder, "--failed")
    assert made.returncode == 2
    assert "no case failed or stayed unknown in the last run into conformance-report" in made.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--failed", "--report", "elsewhere"), "--failed finds no report in elsewhere"),
        (("--failed", "--tier", "deep"), "--tier deep has no use: --failed runs what failed in the last report"),
        (("--failed", "--case", "ssd.step/b1,g1,h1,p1,n1/plain/normal/s0"), "--failed has no use: --case names the one"),
        (("--failed", "--report", "damaged"), "does not start with a header"),
    ],
)
def test_what_cannot_be_run_again_is_refused(folder: Path, words: tuple[str, ...], said: str) -> None:
    (folder / "damaged").mkdir(exist_ok=True)
    (folder / "damaged" / "report.jsonl").write_text("")
    made = run(folder, *words)
    assert made.returncode == 2
    assert said in " ".join(made.stderr.split()), made.stderr
