"""The value of a cell: verdicts, tables and pages all take it from here, so that a cell has one value.

    value     = times tau over / under; a side is the fastest measurement that it lists                    (1)
    time      of what several parts of a run measured differently: in the baseline the fastest, elsewhere the slowest  (2)
    baseline  at most its limit (`ratchet.baselines`)                                                       (3)
    ends      (1) with each time three errors lower or higher, whichever makes the value least and most     (4)

The slowest in (2), because the parts time the same launch of the same code: if they disagree, something that no row names
makes the difference, and a user may meet either time. A claim must hold with both. To take the part that a row belongs to
would be to choose among our own measurements.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

from ..ratchet.baselines import denominator
from ..ratchet.rows import COPY, LEAST, Row, timed
from ..static.allocated import row_bytes
from . import served
from .gates import Cell, Limits
from .measured import LOOKED_AT, At, Missing, Results

OURS = ", ours"
"""The part `peers` adds it to the names of our kernels."""


class Time(NamedTuple):
    """A time in microseconds, or a size in bytes, and the relative error of its median."""

    value: float
    error: float = 0.0


@dataclass(frozen=True)
class Values:
    """The values of a run. `baselines`: the run as it counts in denominators (3)."""

    limits: Limits
    results: Results
    baselines: Results

    def __call__(self, row: Row) -> float:
        """(1). Raises: Missing."""
        over, under = (min(time.value for time in side) for side in self.sides(row))
        return row.cell.times * row.cell.tau * over / under

    def ends(self, row: Row) -> tuple[float, float]:
        """(4). A latency under load has no such ends: they are 0 and infinite. Raises: Missing."""
        if any(place.part == "traffic" for place in (*row.cell.over, *row.cell.under)):
            return 0.0, float("inf")
        over, under = (
            [min(t.value * (1 + 3 * t.error) ** sign for t in side) for sign in (-1, 1)] for side in self.sides(row)
        )
        factor = row.cell.times * row.cell.tau
        return factor * over[0] / under[1], factor * over[1] / under[0]

    def sides(self, row: Row) -> Iterator[list[Time]]:
        """Every measurement of `over`, then of `under`. Raises: Missing."""
        baseline, measured = denominator(row.table), self.time if row.unit == "us" else self.size
        for side in ("over", "under"):
            yield [measured(place, side == baseline) for place in getattr(row.cell, side)]

    def size(self, place: At, baseline: bool) -> Time:
        """The memory of a side, which has no error. Raises: Missing."""
        timing = (self.baselines if baseline else self.results).timing(place)
        if "memory" not in timing:
            raise Missing(f"no memory of {place.operation!r}")
        return Time(float(timing["memory"]))

    def time(self, place: At, baseline: bool) -> Time:
        """(2) and (3). Raises: Missing."""
        results = self.baselines if baseline else self.results
        if place.part == "memory":
            return Time(float(row_bytes(place)))
        if place.part == "floor":
            return Time(results.least_us(timed(place), self.limits.tflops))
        if place.part == "traffic":
            return Time(served.p95(results, place, self.baselines))
        if place.part.startswith(COPY):
            return Time(results.copy_us(timed(place)))
        if place.part.startswith(LEAST):
            return Time(results.copy_us(timed(place)) + results.launch_us(timed(place).part))
        found = [results.timing(place), *map(self.results.timing, unstable(self.limits, self.results, place))]
        return (min if baseline else max)((Time(float(t["us"]), t.get("noise") or 0.0) for t in found), key=lambda t: t.value)

    def differences(self, row: Row) -> Iterator[str]:
        """What several parts of the run measured differently, with both times."""
        for place in sources(row.cell) if row.unit == "us" else ():
            for other in unstable(self.limits, self.results, place):
                both = (f"{self.results.us(at):.1f} us in {at.part}" for at in (place, other))
                yield f"unstable: {place.operation} of {place.shape} at {place.batch} took {', '.join(both)}"

    def noisy(self, row: Row) -> Iterator[str]:
        """The measurements whose noise is above the limit; memory has none."""
        for place in sources(row.cell) if row.unit == "us" else ():
            for at in (place, *unstable(self.limits, self.results, place)):
                noise = self.results.timing(at).get("noise")
                if noise is not None and not noise <= self.limits.noise:
                    yield f"noise of {at.operation} {noise:.3f}, above {self.limits.noise}"


def sources(cell: Cell) -> list[At]:
    """The measurements that a cell uses."""
    made_of = (served.sources(p) if p.part == "traffic" else [timed(p)] for p in (*cell.over, *cell.under))
    return list(dict.fromkeys(place for places in made_of for place in places if place.part != "memory"))


def unstable(limits: Limits, results: Results, place: At) -> list[At]:
    """The same measurement in other parts of the run, if it differs by more than `apart` and the noise."""
    if place.part not in LOOKED_AT:
        return []
    name = place.operation.removesuffix(OURS)
    others = (At(part, place.shape, called, place.batch) for part in LOOKED_AT for called in (name, name + OURS))
    found = [other for other in others if other.part != place.part and other in results.timings]
    own = results.timing(place)
    return [other for other in found if apart(limits, own, results.timing(other))]


def apart(limits: Limits, a: dict[str, Any], b: dict[str, Any]) -> bool:
    noise = sqrt((a.get("noise") or 0.0) ** 2 + (b.get("noise") or 0.0) ** 2)
    return not max(a["us"], b["us"]) <= min(a["us"], b["us"]) * (1 + limits.apart + 3 * noise)
