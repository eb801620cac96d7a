"""One pair of the core set: timed in rounds by pytest-benchmark, and alternately for its ratio; limited on both sides.

times     each side is a separate benchmark, in the group of its pair: `--benchmark-compare` compares it with an earlier
          run, `--benchmark-compare-fail median:5%` exits with 1 if it is slower
ratio     of `over` to `under`, measured alternately (`perf_gates.gpu.paired_timing`), in `extra_info`, also with a planted
          delay, which must fail
held      the ratio on both sides of the best, and the microseconds by their limits, on the gated GPU
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from perf_gates.gpu.clock import relative_error
from perf_gates.gpu.paired_timing import Clock, Pair, Side, TimeGate, measure
from perf_gates.ratchet.bars import Bar, Bars, moved, name_of
from perf_gates.verdicts.gates import Core, Gates
from perf_gates.verdicts.verdict import other_machine

from .place import PART, place

WARM, LEAST = 2, 20
"""Warm-up rounds, and the least number of rounds."""


@dataclass(frozen=True)
class Bench:
    """What timing a pair needs: its sides, `over` with a planted delay, the clock, a function that clears caches, the
    machine."""

    over: Side
    under: Side
    delayed: Callable[[], Side]
    clock: Clock
    cold: Callable[[], object]
    machine: dict[str, Any]
    clock_mhz: Callable[[], int | None]


def best_of(core: Core, bars: Bars) -> float | None:
    """The ratio that a pair is compared with: its own best, or that of its limits; None if there is neither."""
    if core.best is not None:
        return core.best
    over, under = (bars.times.get(name_of(place(core, which))) for which in ("over", "under"))
    return over.us / under.us if over and under else None


def run(benchmark: Any, core: Core, which: str, bench: Bench, gates: Gates, bars: Bars) -> list[str]:
    """Times one side of a pair, and the pair if the side is `over`. Returns why it does not pass; empty if it does.

    Raises: WrongOutputError, ImplausibleTimeError.
    """
    limits, side = gates.limits, getattr(bench, which)
    side.check()
    benchmark.group = core.name
    before = bench.clock_mhz()
    benchmark.pedantic(side.call, setup=lambda: bench.cold() and None, rounds=LEAST, warmup_rounds=WARM)
    us = [1e6 * seconds for seconds in benchmark.stats.stats.data]
    side.plausible(min(us), limits.bandwidth_tb_s, limits.launch_us)
    timing = {"us": median(us), "noise": relative_error(us), "bytes": side.bytes, "clock_mhz": bench.clock_mhz()}
    told: dict[str, Any] = {"name": core.name, "side": which, "place": asdict(place(core, which)), "timing": timing}
    told |= {"machine": bench.machine, "clocks_mhz": [before, timing["clock_mhz"]]}
    faults = [*other_machine(gates, PART, bench.machine), *off_bar(core, which, timing, gates, bars)]
    if which == "over":
        faults += paired(told, core, bench, gates, best_of(core, bars))
    benchmark.extra_info.update(told)
    return faults


def off_bar(core: Core, which: str, timing: dict[str, Any], gates: Gates, bars: Bars) -> list[str]:
    """Compares the microseconds of a side with its limit."""
    name = name_of(place(core, which))
    if name not in bars.times:
        return [f"unknown: {name} has no limit; run `ssmspec gates accept` on a good run"]
    own = Bars(bars.run, bars.reason, {name: bars.times[name]})
    now = {name: Bar(timing["us"], timing["noise"])}
    return [str(m) for m in moved(own, now, gates.limits, gates.slacks)]


def paired(told: dict[str, Any], core: Core, bench: Bench, gates: Gates, best: float | None) -> list[str]:
    """The alternately measured ratio, and the one with a delay."""
    limits, wanted = gates.limits, gates.limits.noise / 4
    pair = measure(bench.over, bench.under, bench.clock, wanted=wanted)
    slower = measure(bench.delayed(), bench.under, bench.clock, wanted=wanted)
    said, planted = verdict(core, pair, best, gates), verdict(core, slower, pair.ratio, gates)
    ratios = [a / b for a, b in zip(pair.over_us, pair.under_us, strict=True)]
    told |= asdict(core) | {"best": best, "ratio": pair.ratio, "error": pair.error, "pairs": ratios, "verdict": said}
    told |= {"delayed": {"ratio": slower.ratio, "error": slower.error, "verdict": planted}}
    found = [] if planted == "FAIL" else [f"a delay of {limits.delay:.0%} gave {slower.ratio / pair.ratio:.3f}: {planted}"]
    return found + ([] if said == "pass" else [f"{said}: {pair.ratio:.4f} +- {pair.error:.4f} for {best}"])


def verdict(core: Core, pair: Pair, best: float | None, gates: Gates) -> str:
    limits = gates.limits
    return "unknown" if best is None else TimeGate(core.name, best, limits.regression, limits.noise).verdict(pair)
