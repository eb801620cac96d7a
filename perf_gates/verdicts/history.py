"""Saved runs, and their comparison: one JSON line per run, with its machine, clocks, versions and commit.

    z = log(us_b / us_a) / sqrt(e_a^2 + e_b^2)      e the relative errors of the medians                (1)
    p = 2 (1 - Phi(|z|)), by Holm's procedure over all measurements that both runs hold                 (2)
    regression: slower than the best of the last runs on the same GPU by more than two runs differ, with (2) below the
    level                                                                                                             (3)

Runs of different GPUs are not comparable; a measurement that only one of two runs has is listed.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import erfc, log, sqrt
from pathlib import Path
from typing import Any

from ..files import head
from ..machine import kernels_hash
from ..ratchet.bars import LEAST_NOISE, Bar, allowed
from .gates import Limits, load
from .measured import Results, stands

FILE = Path(__file__).parent.parent / "results" / "history.jsonl"
"""The committed runs: only written if a command names this file."""


class NotComparableError(ValueError):
    """Two runs that cannot be compared."""


class PlaceError(ValueError):
    """A file in which a run cannot be saved."""


@dataclass(frozen=True)
class Time:
    """One measurement. Units: microseconds, a share, MHz."""

    us: float
    noise: float
    clock_mhz: int | None


@dataclass(frozen=True)
class Run:
    """A run: its machine and code, and its measurements by part/shape/operation/batch."""

    machine: dict[str, Any]
    times: dict[str, Time]

    @property
    def name(self) -> str:
        return f"{self.machine.get('commit', 'unknown')[:7]} (kernels {self.machine['kernels'][:7]})"


@dataclass(frozen=True)
class Change:
    """A measurement in two runs. `p` is Holm's; `allowed`: how far two runs of the same code may differ (see
    `ratchet.bars`)."""

    name: str
    before: float
    after: float
    p: float
    allowed: float = 0.0

    @property
    def ratio(self) -> float:
        return self.after / self.before

    @property
    def beyond(self) -> bool:
        """Whether it is more than two runs of the same code differ by."""
        return not 1 / (1 + self.allowed) <= self.ratio <= 1 + self.allowed


def timed(results: Results) -> dict[str, dict[str, Any]]:
    """The parts of a run that hold times. Raises: NotComparableError for none."""
    parts = {part: found for part, found in results.parts.items() if "timings" in found}
    if not parts:
        raise NotComparableError(
            f"{results.folder} has no part with times; give the folder of a run, such as perf_gates/results"
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
        if t["us"] > 0  # results that are compared but not timed
    }
    return Run(machine, times)


def line(run: Run, accepted: str = "") -> str:
    """`accepted`: why a run with regressions is saved."""
    told = {"accepted": accepted} if accepted else {}
    return json.dumps({"machine": run.machine, **told, "times": {name: asdict(time) for name, time in run.times.items()}})


def runs(file: Path = FILE) -> list[Run]:
    """All saved runs, the oldest first. Raises: PlaceError for a file that is not a history."""
    found = []
    for number, row in enumerate(file.read_text(encoding="utf-8").splitlines() if file.exists() else [], 1):
        try:
            read = json.loads(row)
            found.append(Run(read["machine"], {name: Time(**time) for name, time in read["times"].items()}))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlaceError(f"{file}, line {number}, is not a saved run: {error}; name a history, or a new file") from None
    return found


def keep(run: Run, file: Path, accepted: str = "") -> bool:
    """Appends a run, unless it is already saved.

    Raises: PlaceError for a file inside the installed package.
    """
    package = Path(__file__).parent.parent
    if "site-packages" in package.parts and file.resolve().is_relative_to(package):
        raise PlaceError(f"--history is {file}, inside the installed package, where it would be lost; name a file of yours")
    if any(run.times == was.times and was.machine["kernels"] == run.machine["kernels"] for was in runs(file)):
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        out.write(line(run, accepted) + "\n")
    return True


def compare(before: Run, after: Run) -> list[Change]:
    """(1) (2), the largest change first.

    Raises: NotComparableError for runs of different GPUs, or without a measurement in common.
    """
    if before.machine["gpu"] != after.machine["gpu"]:
        raise NotComparableError(f"one run is from {before.machine['gpu']}, the other from {after.machine['gpu']}")
    common = sorted(before.times.keys() & after.times.keys())
    if not common:
        raise NotComparableError(f"{before.name} and {after.name} hold no measurement in common")
    raw = {name: _p(before.times[name], after.times[name]) for name in common}
    held = holm(raw)
    found = [
        Change(name, before.times[name].us, after.times[name].us, held[name], between(name, before, after)) for name in common
    ]
    return sorted(found, key=lambda change: -abs(log(change.ratio)))


def between(name: str, before: Run, after: Run) -> float:
    """How far two runs of the same code may differ: the slack of `gates.toml`, and three errors of both medians."""
    was, now = (Bar(run.times[name].us, run.times[name].noise) for run in (before, after))
    return allowed(name, was, now, load().slacks)


def _p(a: Time, b: Time) -> float:
    errors = sqrt(max(a.noise, LEAST_NOISE) ** 2 + max(b.noise, LEAST_NOISE) ** 2)
    return erfc(abs(log(b.us / a.us)) / errors / sqrt(2))


def holm(raw: dict[str, float]) -> dict[str, float]:
    """Levels such that the probability of any false claim is at most the level. Source: Holm, 1979."""
    held, least = {}, 0.0
    for i, (name, p) in enumerate(sorted(raw.items(), key=lambda item: item[1])):
        least = max(least, min(1.0, (len(raw) - i) * p))
        held[name] = least
    return held


def best(earlier: Sequence[Run], gpu: str, count: int) -> Run | None:
    """The fastest of the last `count` runs on a GPU, for each measurement; None if there is no run."""
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
    """(3). Raises: NotComparableError if no earlier run is from this GPU."""
    was = best(earlier, now.machine["gpu"], limits.runs)
    if was is None:
        raise NotComparableError(f"no saved run is from {now.machine['gpu']}")
    yield from (c for c in compare(was, now) if c.ratio > 1 and c.beyond and c.p < limits.significance)


def lost(before: Run, after: Run) -> list[str]:
    """Measurements that were made before and are now missing."""
    return sorted(before.times.keys() - after.times.keys())


def table(changes: Sequence[Change], level: float) -> Iterator[str]:
    """The significant changes, and the number of others."""
    told = [change for change in changes if change.p < level and change.beyond]
    yield from head("measurement | before, us | after, us | ratio | p")
    yield from (f"| {c.name} | {c.before:.2f} | {c.after:.2f} | {c.ratio:.3f} | {c.p:.1g} |" for c in told)
    yield f"\n{len(changes) - len(told)} of {len(changes)} measurements did not change at the level {level}."
