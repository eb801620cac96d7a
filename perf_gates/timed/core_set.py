"""The core set: each pair in turn until its ratio is known, its outputs right, its times possible; a delay must show.

    pytest perf_gates/timed/core_set.py --benchmark-json FILE

pytest-benchmark keeps the times of `over`, taken by CUDA events, and beside them the ratio, its error, the clocks and the
verdict. The file is named so that a plain `pytest` does not collect it: without a GPU it has nothing to say, and fails.
"""

from collections.abc import Iterable
from dataclasses import asdict
from itertools import chain
from typing import Any

import pytest
import torch

from perf_gates import gates
from perf_gates.gates import Core
from perf_gates.machine import clock_mhz, fingerprint
from perf_gates.pairs import TimeGate, measure

GATES = gates.load()
WANTED = GATES.limits.noise / 4
"""The error at which a pair is known well enough: far below the limit, so that ten runs say the same."""


class Told:
    """A timer that tells times which were taken already: what pytest-benchmark asks before a round, and after it."""

    def __init__(self, us: Iterable[float]) -> None:
        self.ticks = chain.from_iterable((0.0, time / 1e6) for time in us)

    def __call__(self) -> float:
        return next(self.ticks)


@pytest.fixture(scope="module")
def clock() -> Any:
    if not torch.cuda.is_available():
        pytest.fail(
            "the core set is timed on a GPU, and none is here; `ssmspec gates check` is what a CPU can say", pytrace=False
        )
    from perf_gates.gpu.core import Events

    return Events()


def gate_of(core: Core, best: float) -> TimeGate:
    return TimeGate(core.name, best, GATES.limits.regression, GATES.limits.noise)


@pytest.mark.parametrize("core", GATES.core, ids=lambda core: core.name)
def test_pair_is_as_fast_as_our_best_and_a_delay_is_caught(core: Core, clock: Any, benchmark: Any) -> None:
    from perf_gates.gpu.core import side, sides

    over, under = sides(core)
    before = clock_mhz()
    pair = measure(over, under, clock, wanted=WANTED)
    after = clock_mhz()
    benchmark._timer = Told(pair.over_us)
    benchmark.pedantic(lambda: None, rounds=len(pair.over_us), iterations=1, warmup_rounds=0)
    for found, times in ((over, pair.over_us), (under, pair.under_us)):
        found.plausible(min(times), GATES.limits.bandwidth_tb_s, GATES.limits.launch_us)
    slower = measure(side(core.dims, core.over, core.batch, GATES.limits.delay), under, clock, wanted=WANTED)
    verdict, planted = gate_of(core, core.best).verdict(pair), gate_of(core, pair.ratio).verdict(slower)
    benchmark.extra_info.update(
        asdict(core) | {"ratio": pair.ratio, "error": pair.error, "pairs": len(pair.over_us), "verdict": verdict},
        delayed={"ratio": slower.ratio, "error": slower.error, "verdict": planted},
        clocks_mhz=[before, after],
        machine=fingerprint(),
    )
    assert planted == "FAIL", (
        f"a delay of {GATES.limits.delay:.0%} gave {slower.ratio / pair.ratio:.3f} of the time: {planted}"
    )
    assert verdict == "pass", f"{core.name}: {pair.ratio:.3f} +- {pair.error:.3f}, best {core.best}: {verdict}"
