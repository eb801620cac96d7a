"""Where a call ran is observed: a device that is not there is refused, and an adapter that ignores one is told of."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from conformance.cli import app
from conformance.device import driver, observed
from conformance.errors import AdapterUnavailable
from conformance.report.stream import read_report

ROOT = Path(__file__).parents[3]
CASE = "ssd.scan/b2,t7,g2,h6,p5,n4/plain/gentle/s0"
IGNORES = """
import numpy as np
from ssmspec_ref import conv
from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject

def commit(M, u, advanced):
    return conv.commit(M, u, advanced).astype(np.float32)

def adapter(device="cpu"):
    return Adapter("mine", "0.1", (Subject("window", {"conv.commit": Capability(commit, NumericContract())}),))
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "ignores.py").write_text(IGNORES)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")]), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "conformance", "run", "--report", "report", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)


@pytest.mark.parametrize("device", ["gpu", "cudda", "cuda:x", "CUDA", ""])
def test_a_device_that_is_none_is_refused_with_those_that_are(device: str) -> None:
    with pytest.raises(AdapterUnavailable, match="is not a device; give cpu, cuda, cuda:1 or interpreter"):
        observed.check(device)


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_judged(tmp_path: Path) -> None:
    done = run(tmp_path, "--adapter", "ignores:adapter", "--device", "cuda")
    assert done.returncode == 2, done.stdout
    assert "--device cuda needs a GPU, and none is visible" in done.stderr
    assert not (tmp_path / "report").exists()


def test_a_second_gpu_of_a_machine_with_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "gpus", lambda: ["NVIDIA H100 80GB HBM3"])
    observed.check("cuda:0")
    with pytest.raises(AdapterUnavailable, match=r"the GPUs are cuda:0 \(NVIDIA H100 80GB HBM3\)"):
        observed.check("cuda:1")


def test_what_ignores_its_device_is_told_to_have_run_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with a GPU an adapter may take the argument and compute on the CPU all the same."""
    monkeypatch.setattr(driver, "gpus", lambda: ["NVIDIA H100 80GB HBM3"])
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ignores.py").write_text(IGNORES)
    words = ["run", "--adapter", "ignores:adapter", "--device", "cuda", "--in-process", "--report", str(tmp_path / "report")]
    made = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert "--device cuda was given, but these adapters never used it: window" in made.output
    results = [r for r in read_report(tmp_path / "report").results if r.case]
    assert {r.place for r in results} == {"cpu"}
    page = (tmp_path / "report" / "report.html").read_text()
    assert "ran on cpu" in page
    assert "on cuda" not in page


def test_the_interpreter_is_seen_where_kernels_were_launched_in_it(tmp_path: Path) -> None:
    words = ("--device", "interpreter", "--adapter")
    kernels = run(tmp_path, *words, "ssmspec_fast.adapters.kernels:adapter", "--subject", "ssd_scan", "--case", CASE)
    assert kernels.returncode == 0, kernels.stderr
    assert "ran on: Triton interpreter (1 case)" in kernels.stdout
    assert "triton" in read_report(tmp_path / "report").header.versions
    plain = run(tmp_path, *words, "ignores:adapter")
    assert "ran on: cpu" in plain.stdout
    assert "--device interpreter was given, but these adapters never used it: window" in plain.stdout


class Cuda(ModuleType):
    """PyTorch's view of a GPU: counts that the test changes."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.count = self.held = 0
        self.cuda: Any = SimpleNamespace(
            is_initialized=lambda: True,
            device_count=lambda: 1,
            get_device_name=lambda number: "NVIDIA H100 80GB HBM3",
            memory_stats=lambda number: {"allocation.all.allocated": self.count, "allocated_bytes.all.current": self.held},
        )


def test_a_gpu_is_seen_where_memory_was_taken_on_it_or_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Cuda()
    monkeypatch.setitem(sys.modules, "torch", torch)
    watch = observed.Watch()
    assert watch.place() == "cpu", "a GPU that is open and not used"
    torch.count = 3
    assert watch.place() == "NVIDIA H100 80GB HBM3"
    assert observed.Watch().place() == "cpu", "what an earlier call took says nothing of this one"
    torch.held = 4096
    assert observed.Watch().place() == "NVIDIA H100 80GB HBM3", "buffers that are kept from call to call"


def test_without_pytorch_a_gpu_is_seen_by_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(driver, "opened", lambda: ["NVIDIA H100 80GB HBM3"])
    assert observed.Watch().place() == "NVIDIA H100 80GB HBM3"
    monkeypatch.undo()
    assert driver.opened() == [] or driver.gpus(), "a process that has not loaded the driver has opened nothing"
