"""Where a call ran is observed: a device that is not there is refused, and an adapter that ignores one is told of."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from conformance.device import driver, observed
from conformance.errors import AdapterUnavailable
from tests.commands import done, reported

IGNORES = """
import numpy as np
from ssmspec_ref import conv
from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject

def commit(M, u, advanced):
    return conv.commit(M, u, advanced).astype(np.float32)

def adapter(device="cpu"):
    return Adapter("mine", "0.1", (Subject("window", {"conv.commit": Capability(commit, NumericContract())}),))
"""


@pytest.mark.parametrize("device", ["gpu", "cudda", "cuda:x", "CUDA", ""])
def test_a_device_that_is_none_is_refused_with_those_that_are(device: str) -> None:
    with pytest.raises(AdapterUnavailable, match="is not a device; give cpu, cuda, cuda:1 or interpreter"):
        observed.check(device)


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
    said = "--device {} was given, but these adapters never used it: window"
    words = ("--adapter", "ignores:adapter", "--device")
    alone = done("run", *words, "interpreter", folder=tmp_path, cwd=tmp_path, code=0, said=said.format("interpreter"))
    assert "ran on: cpu" in alone.stdout
    told, report = (said.format("cuda"), "ran on: cpu"), tmp_path / "report"
    results = reported(0, *words, "cuda", "--in-process", report=report, said=told).results
    assert {r.place for r in results if r.case} == {"cpu"}
    page = (tmp_path / "report" / "report.html").read_text()
    assert "ran on cpu" in page
    assert "on cuda" not in page


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
