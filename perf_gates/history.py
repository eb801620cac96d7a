"""Runs kept, and set against each other: one JSON line a run, with its machine, clocks, versions and commit.

    z = log(us_b / us_a) / sqrt(e_a^2 + e_b^2)      e the relative errors of the medians                (1)
    p = 2 (1 - Phi(|z|)), by Holm's procedure over all measurements that both runs hold                 (2)
    regression: slower than the best of the last runs on the same GPU by more than a share, and (2) below the level   (3)

Runs of other GPUs are not comparable; a measurement that one of two runs lacks is named.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import erfc, log, sqrt
from pathlib import Path
from typing import Any

from .gates import Limits
from .machine import kernels_hash
from .measured import Results, stands

FILE = Path(__file__).parent / "results" / "history.jsonl"
LEAST_NOISE = 0.002
"""The relative error of a median that is never believed to be smaller: what the events resolve, and what placement adds."""


class NotComparableError(ValueError):
    """Two runs that say nothing of each other."""


@dataclass(frozen=True)
class Time:
    """One measurement. Units: microseconds, a share, MHz."""

    us: float
    noise: float
    clock_mhz: int | None


@dataclass(frozen=True)
class Run:
    """A run: what it was made on and with, and its measurements by part/shape/operation/batch."""

    machine: dict[str, Any]
    times: dict[str, Time]

    @property
    def name(self) -> str:
        return f"{self.machine.get('commit', 'unknown')[:7]} (kernels {self.machine['kernels'][:7]})"


@dataclass(frozen=True)
class Change:
    """A measurement in two runs. `p` is Holm's."""

    name: str
    before: float
    after: float
    p: float

    @property
    def ratio(self) -> float:
        return self.after / self.before


def timed(results: Results) -> dict[str, dict[str, Any]]:
    """The parts of a run that hold times. Raises: NotComparableError for none."""
    parts = {part: found for part, found in results.parts.items() if "timings" in found}
    if not parts:
        raise NotComparableError(
            f"{results.folder} holds no part with times; give the folder of a run, such as perf_gates/results"
        )
    return parts


def run_of(results: Results) -> Run:
    """Raises: NotComparableError for parts of several machines, versions or kernels, or for none."""
    parts, now = timed(results), kernels_hash()

    def made_with(part: str, machine: dict[str, Any]) -> tuple[Any, ...]:
        kernels = now if stands(part, machine, now) else machine.get("kernels")
        return *(machine.get(name) for name in ("gpu", "torch", "triton")), kernels

    made = {made_with(part, found["machine"]) for part, found in parts.items()}
    if len(made) != 1:
        raise NotComparableError(f"the parts were made with {sorted(made)}; run those that differ again")
    machine = dict(next(iter(parts.values()))["machine"]) | {"kernels": next(iter(made))[-1]}
    times = {
        f"{at.part}/{at.shape}/{at.operation}/{at.batch}": Time(t["us"], t.get("noise", 0.0), t.get("clock_mhz"))
        for at, t in results.timings.items()
        if t["us"] > 0  # of what is compared and not timed there is no time
    }
    return Run(machine, times)


def line(run: Run) -> str:
    return json.dumps({"machine": run.machine, "times": {name: asdict(time) for name, time in run.times.items()}})


def runs(file: Path = FILE) -> list[Run]:
    """All that are kept, the oldest first."""
    read = [json.loads(row) for row in file.read_text().splitlines()] if file.exists() else []
    return [Run(r["machine"], {name: Time(**time) for name, time in r["times"].items()}) for r in read]


def keep(run: Run, file: Path = FILE) -> bool:
    """Append a run; one that is there already is not kept twice."""
    if run in runs(file):
        return False
    with file.open("a") as out:
        out.write(line(run) + "\n")
    return True


def compare(before: Run, after: Run) -> list[Change]:
    """(1) (2), the largest change first.

    Raises: NotComparableError for runs of different GPUs, or without a measurement in common.
    """
    if before.machine["gpu"] != after.machine["gpu"]:
        raise NotComparableError(f"one run is of {before.machine['gpu']}, the other of {after.machine['gpu']}")
    common = sorted(before.times.keys() & after.times.keys())
    if not common:
        raise NotComparableError(f"{before.name} and {after.name} hold no measurement in common")
    raw = {name: _p(before.times[name], after.times[name]) for name in common}
    held = holm(raw)
    found = [Change(name, before.times[name].us, after.times[name].us, held[name]) for name in common]
    return sorted(found, key=lambda change: -abs(log(change.ratio)))


def _p(a: Time, b: Time) -> float:
    errors = sqrt(max(a.noise, LEAST_NOISE) ** 2 + max(b.noise, LEAST_NOISE) ** 2)
    return erfc(abs(log(b.us / a.us)) / errors / sqrt(2))


def holm(raw: dict[str, float]) -> dict[str, float]:
    """Levels such that the chance of one false claim among all is at most the level. Source: Holm, 1979."""
    held, least = {}, 0.0
    for i, (name, p) in enumerate(sorted(raw.items(), key=lambda item: item[1])):
        least = max(least, min(1.0, (len(raw) - i) * p))
        held[name] = least
    return held


def best(earlier: Sequence[Run], gpu: str, count: int) -> Run | None:
    """Of each measurement the fastest of the last `count` runs on a GPU; None without one."""
    own = [run for run in earlier if run.machine["gpu"] == gpu][-count:]
    if not own:
        return None
    times: dict[str, Time] = {}
    for run in own:
        for name, time in run.times.items():
            if name not in times or time.us < times[name].us:
                times[name] = time
    return Run({"gpu": gpu, "commit": f"best of {len(own)}", "kernels": "any"}, times)


def regressions(earlier: Sequence[Run], now: Run, limits: Limits) -> Iterator[Change]:
    """(3). Raises: NotComparableError where no earlier run is of this GPU."""
    was = best(earlier, now.machine["gpu"], limits.runs)
    if was is None:
        raise NotComparableError(f"no run that is kept is of {now.machine['gpu']}")
    yield from (c for c in compare(was, now) if c.ratio > 1 + limits.regression and c.p < limits.significance)


def lost(before: Run, after: Run) -> list[str]:
    """What was measured before and is not any more."""
    return sorted(before.times.keys() - after.times.keys())


def table(changes: Sequence[Change], level: float) -> Iterator[str]:
    """Changes that are significant; how many are not."""
    told = [change for change in changes if change.p < level]
    yield "| measurement | before, us | after, us | ratio | p |"
    yield "|---|---|---|---|---|"
    yield from (f"| {c.name} | {c.before:.2f} | {c.after:.2f} | {c.ratio:.3f} | {c.p:.1g} |" for c in told)
    yield f"\n{len(changes) - len(told)} of {len(changes)} measurements did not change at the level {level}."
