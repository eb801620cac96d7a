"""Steps of the engine in the record: told by their launches and inputs, by nothing else of the engine."""

from collections.abc import Callable

import pytest
import torch

from perf_gates.digest import measured, record
from perf_gates.gpu.engine import bench

HELD = record.read()


def steps_recorded(monkeypatch: pytest.MonkeyPatch, change: Callable[[Callable[[], object]], Callable[[], object]]) -> str:
    """The call of the first plain step, as the digest of what it launches, with a change of what runs."""
    stepping = bench.stepping
    monkeypatch.setattr(bench, "cases", lambda: ((step,) for step in bench.steps()[:1]))
    monkeypatch.setattr(bench, "stepping", lambda *given: change(stepping(*given)))
    ((name, calls),) = measured.engine()
    assert name == "bench/mamba2-2.7b/plain, window of 1/1"
    monkeypatch.undo()
    return " ".join(call.digest(lambda launch, _: launch.kernel.fn.__name__, measured.H200) + call.inputs for call in calls)


def test_a_step_of_the_engine_is_told_by_its_launches_and_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    told = steps_recorded(monkeypatch, lambda run: run)
    assert steps_recorded(monkeypatch, lambda run: lambda: run()) == told

    def copies(run: Callable[[], object]) -> Callable[[], object]:
        more = torch.zeros(4, device="cuda")
        return lambda: (run(), more.clone())

    def twice(run: Callable[[], object]) -> Callable[[], object]:
        return lambda: (run(), run())

    assert len({told, *(steps_recorded(monkeypatch, change) for change in (copies, twice))}) == 3


def test_a_step_of_the_engine_that_git_holds_no_digest_of_is_not_green() -> None:
    assert "no digest of mamba2-2.7b/another step/1 is recorded" in record.fault(
        "bench", HELD.parts["bench"].commit, "", "mamba2-2.7b/another step/1"
    )
    assert record.fault("bench", HELD.parts["bench"].commit, "", "mamba2-2.7b/transformers, window of 1/1") == ""
