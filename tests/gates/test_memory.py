"""Memory stated beside memory taken on a GPU: the cases are large enough and run, what is not within a tenth fails."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.main import run_command
from conformance.suite.graph.tape import TapeRecorder
from perf_gates.gpu import memory
from perf_gates.gpu.memory import CASES, LEAST, Bench, Case, Taken
from ssmspec_fast.models import build
from tests.fast.conftest import as_on_a_gpu  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")

SMALL: dict[str, dict[str, Any]] = {
    "weights": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1},
    "states": {"num_hidden_layers": 1},
    "a history for n-grams": {"num_hidden_layers": 1},
    "a run of prompts": {"num_hidden_layers": 1},
    "laws of a window": {"num_hidden_layers": 1},
}
FEW = {"slots": 2, "cache": 40}


def small(name: str) -> Case:
    case = CASES[name]
    return replace(case, sizes=SMALL[name], options=case.options | FEW, tokens=min(9, case.tokens))


class Meter:
    """An allocator that took these shares of 600 MB."""

    stated = 600_000_000

    def __init__(self, *shares: float) -> None:
        self.shares = shares

    def grown(self) -> tuple[int, int, int]:
        allocated, reserved, device = (int(share * self.stated) for share in self.shares)
        return allocated, reserved, device


@pytest.mark.parametrize("name", CASES)
def test_a_case_takes_enough_on_a_gpu(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is stated, with the kernels' launchers; with graphs more."""
    monkeypatch.setattr(build, "check_device", lambda device: None)
    folder = CASES[name].folder(tmp_path / "model")
    stated = [
        CASES[name].parts(folder, "cuda:90", recorder, limit=2**40, kernels=True).memory
        for recorder in (None, TapeRecorder())
    ]
    assert LEAST <= stated[0].peak <= stated[1].peak <= 4 * LEAST
    assert stated[0].work < stated[1].work


@pytest.mark.parametrize("name", CASES)
def test_a_case_runs_with_launches_and_with_graphs(name: str) -> None:
    found = list(Bench("cpu", lambda: Meter(0.9, 1.0, 1.1), TapeRecorder).run({name: small(name)}))
    assert [(taken.case, taken.graphs, taken.error) for taken in found] == [(name, False, ""), (name, True, "")]
    for taken in found:
        assert (taken.allocated, taken.reserved, taken.device) == (540_000_000, 600_000_000, 660_000_000)
        assert taken.stated > 0
    assert found[1].every_shape in (0, found[1].reserved)


@pytest.mark.parametrize(
    ("stated", "reserved", "holds"),
    [
        (600e6, 600e6, True),
        (600e6, 560e6, True),
        (600e6, 540e6, False),
        (600e6, 670e6, False),
        (400e6, 400e6, False),
        (1, 0, False),
    ],
)
def test_planted_figures_that_are_not_within_a_tenth_are_no_success(stated: float, reserved: float, holds: bool) -> None:
    taken = Taken("planted", False, int(stated), reserved=int(reserved))
    assert taken.holds is holds
    assert ("NOT WITHIN" in str(taken)) is not holds


def test_a_case_that_fails_or_has_no_time_says_so_and_the_others_run() -> None:
    broken = replace(small("states"), options={"method": "no such method"})
    cases = {"broken": broken, "weights": small("weights")}
    found = list(Bench("cpu", lambda: Meter(1, 1, 1), TapeRecorder).run(cases))
    assert [bool(taken.error) for taken in found] == [True, True, False, False]
    assert "no such method" in str(found[0])
    late = list(Bench("cpu", lambda: Meter(1, 1, 1), TapeRecorder).run(cases, seconds=-1))
    assert [taken.error for taken in late] == ["not run: -1 s are over"] * 4
    assert not any(taken.holds for taken in late)


@pytest.mark.parametrize(("share", "code"), [(1.0, 0), (0.8, 1)])
def test_the_command_ends_with_the_verdict(
    share: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(bench: Bench, cases: dict[str, Case], seconds: float) -> list[Taken]:
        return [Taken(name, False, Meter.stated, *Meter(1, share, 1).grown()[:2], text="as stated") for name in cases]

    monkeypatch.setattr(memory, "need_gpu", lambda: None)
    monkeypatch.setattr(memory, "fingerprint", lambda: {"gpu": "none"})
    monkeypatch.setattr(Bench, "run", run)
    assert run_command(memory.main, ["--out", str(tmp_path / "memory.json")]) == code
    held = json.loads((tmp_path / "memory.json").read_text())
    assert [row["ratio"] for row in held["cases"]] == [pytest.approx(1 / share)] * len(CASES)
    assert capsys.readouterr().out.count("NOT WITHIN") == (len(CASES) if code else 0)


def test_what_grows_is_read_from_the_moment_that_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def noted(name: str, value: Any = None) -> Callable[[], Any]:
        def call() -> Any:
            done.append(name)
            return value

        return call

    values = {"memory_allocated": 5, "memory_reserved": 7, "max_memory_allocated": 50, "max_memory_reserved": 70}
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", *values):
        monkeypatch.setattr(torch.cuda, name, noted(name, values.get(name)))
    free = iter([(900, 1000), (800, 1000)])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: next(free))
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", noted("workspaces"), raising=False)
    assert memory.Allocator().grown() == (45, 63, 100)
    assert done[:5] == ["synchronize", "workspaces", "empty_cache", "reset_peak_memory_stats", "memory_allocated"]
