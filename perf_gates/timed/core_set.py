"""The core set: each pair of our kernels, its sides timed in rounds by CUDA events; outputs must be right, times possible.

    pytest perf_gates/timed/core_set.py --benchmark-json FILE
    pytest perf_gates/timed/core_set.py --benchmark-storage DIR --benchmark-save NAME
    pytest perf_gates/timed/core_set.py --benchmark-storage DIR --benchmark-compare --benchmark-compare-fail median:5%

The file's name keeps a plain `pytest` from collecting it: without a GPU it cannot measure, and fails.
"""

from typing import Any

import pytest
import torch

from perf_gates.machine import clock_mhz, fingerprint
from perf_gates.ratchet import bars
from perf_gates.verdicts import gates
from perf_gates.verdicts.gates import Core

from .gated import Bench, run

GATES = gates.load()


class Stamp:
    """A point in the GPU's time; the difference of two is in seconds."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record()

    def __sub__(self, before: "Stamp") -> float:
        self.event.synchronize()
        return float(before.event.elapsed_time(self.event)) / 1000


@pytest.fixture(scope="module")
def events() -> Any:
    if not torch.cuda.is_available():
        pytest.fail("the core set needs a GPU, and there is none; on a CPU use `ssmspec gates check`", pytrace=False)
    from perf_gates.gpu.core import Events

    return Events()


@pytest.fixture(scope="module")
def machine(events: Any) -> dict[str, str]:
    return fingerprint()


@pytest.mark.benchmark(timer=Stamp)
@pytest.mark.parametrize("which", ["over", "under"])
@pytest.mark.parametrize("core", GATES.core, ids=lambda core: core.name)
def test_side(core: Core, which: str, events: Any, machine: dict[str, str], benchmark: Any) -> None:
    from perf_gates.gpu.core import side, sides

    over, under = sides(core)
    delayed = lambda: side(core.dims, core.over, core.batch, GATES.limits.delay)  # noqa: E731
    bench = Bench(over, under, delayed, events, events.cold, machine, clock_mhz)
    faults = run(benchmark, core, which, bench, GATES, bars.read())
    assert not faults, "; ".join(faults)
