"""The verdict of a gate on a run: pass, near, known miss, to tighten, FAIL or unknown, and why. Unknown never counts as
passed.

    value = times tau min(over) / min(under), the baseline as `ratchet.baselines` holds it   (1)
    unknown       a measurement is missing, has no limit, is impossible, or was made on another GPU, with other versions or
                  kernels, of a peer of another version than the limit's, with noise above the limit or a clock below it, or
                  against a baseline that is slower than its bytes or the best peer's kernel of its kind in the same run
                  allow                                                                        (2)
    FAIL          a measurement is slower, or takes more memory, than its limit (`ratchet.bars`), or the target is missed and
                  was reached when the limit was written                                       (3)
    to tighten    a measurement is faster than its limit, or a known miss reaches its target, or misses it only because the
                  baseline is faster: `ssmspec gates accept` writes the new limit              (4)
    known miss    the target is missed as it was when the limit was written                  (5)
    near          the target lies within the error of the value, or is missed by no more than runs differ  (6)
    pass          the target is reached, with the error of the value counted against it

The baseline of a figure is its denominator: `under` if the target is an upper limit, `over` if it is a lower one. A slower
baseline makes no cell pass (1), and a faster one makes none fail (4).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from math import sqrt

from ..ratchet.bars import Bars, Moved, moved, name_of, times
from ..ratchet.baselines import denominator, held
from ..ratchet.peers import other_version
from ..ratchet.possible import impossible
from ..ratchet.rows import COPY, LEAST, Row, rows, timed
from ..static.allocated import row_bytes
from . import served
from .floors import least_us
from .gates import Cell, Gates, Table, at
from .measured import At, Missing, Results, stands


class Verdict(Enum):
    """The verdict on one cell."""

    PASS = "pass"
    NEAR = "near"
    MISS = "known miss"
    TIGHTEN = "to tighten"
    FAIL = "FAIL"
    UNKNOWN = "unknown"


RED = (Verdict.FAIL, Verdict.UNKNOWN)


@dataclass(frozen=True)
class Judged:
    """A cell with its value, if there is one. `floor`: the limit that bytes and launches set; `error`:
    the relative error of the value; `listed`: why it may be unknown; `unstable`: what differs between parts, with both
    times."""

    row: Row
    verdict: Verdict
    target: float
    value: float | None = None
    floor: float | None = None
    why: str = ""
    error: float = 0.0
    listed: str = ""
    unstable: str = ""

    @property
    def table(self) -> Table:
        return self.row.table

    @property
    def cell(self) -> Cell:
        return self.row.cell

    @property
    def red(self) -> bool:
        """Whether a run fails because of it: it failed, or is unknown without being listed, or is listed and known."""
        return self.verdict is not Verdict.UNKNOWN if self.listed else self.verdict in RED

    def __str__(self) -> str:
        value = "" if self.value is None else f": {self.value:.4g} for {self.target:g}"
        told = "; ".join(filter(None, (self.listed or self.why, self.unstable)))
        return f"{self.verdict.value}: {self.row.name}{value}  {told}".rstrip()


@dataclass(frozen=True)
class Judge:
    """Gates, a run, the same as it counts in baselines, the current hash of the kernels, the limits; and the measurements
    off their limits, by name."""

    gates: Gates
    results: Results
    baselines: Results
    kernels: str
    bars: Bars
    off: dict[str, Moved]

    def __call__(self, row: Row) -> Judged:
        table, cell, gates = row.table, row.cell, self.gates
        unit, listed = "memory" if table.kind == "memory" else "us", gates.lacking.get(row.name, "")
        try:
            value = self.value(row, unit)
            floor = self.floor(row)
            why = "; ".join(dict.fromkeys(self.obstacles(cell)))
        except Missing as missing:
            return Judged(row, Verdict.UNKNOWN, gates.target(table, cell), why=f"not measured: {missing}", listed=listed)
        target = gates.target(table, cell, floor)
        found = Judged(row, Verdict.UNKNOWN, target, value, floor, error=self.error(cell, unit), listed=listed)
        found = replace(found, unstable="; ".join(self.instabilities(cell)) if unit == "us" else "")
        return replace(found, why=why) if why else self.held(found, unit)  # (2)

    def held(self, j: Judged, unit: str) -> Judged:
        """(3) to (6) for a cell that can be compared. NaN never passes."""
        slower = ("slower",) if unit == "us" else ("larger",)
        faster = ("faster",) if unit == "us" else ("smaller",)
        off = [self.off[name] for place in sources(j.cell) if (name := name_of(place)) in self.off]
        assert j.value is not None
        sure = 1 + 2 * j.error if j.table.sense == "most" else 1 / (1 + 2 * j.error)
        near = 1 + self.gates.limits.near if j.table.sense == "most" else 1 / (1 + self.gates.limits.near)
        missed, reached = j.row.name in self.bars.missed, j.table.holds(j.value, j.target)
        if worse := [str(m) for m in off if m.how in slower]:
            return replace(j, verdict=Verdict.FAIL, why="; ".join(worse))
        if better := [str(m) for m in off if m.how in faster]:
            return replace(j, verdict=Verdict.TIGHTEN, why="; ".join(better))
        if j.table.holds(j.value * sure, j.target):
            if missed:
                return replace(
                    j, verdict=Verdict.TIGHTEN, why=f"reaches its target; the limit is {self.bars.missed[j.row.name]:.4g}"
                )
            return replace(j, verdict=Verdict.PASS)
        if missed:
            return replace(j, verdict=Verdict.MISS, why=j.table.bounds)
        if reached or j.table.holds(j.value / near, j.target):
            return replace(j, verdict=Verdict.NEAR, why=f"within {2 * j.error:.1%} of its target, or closer than runs differ")
        return replace(j, verdict=Verdict.FAIL, why="misses its target, and reached it when its limit was written")

    def value(self, row: Row, unit: str) -> float:
        """(1). Raises: Missing."""
        cell, baseline = row.cell, denominator(row.table)
        over, under = (
            min(self.time(place, unit, which == baseline) for place in getattr(cell, which)) for which in ("over", "under")
        )
        return cell.times * cell.tau * over / under

    def time(self, place: At, unit: str, baseline: bool) -> float:
        """The time of a side: as a baseline the fastest of all parts that measure it, held to its limit; else the slowest.

        Raises: Missing.
        """
        results, limits = self.baselines if baseline else self.results, self.gates.limits
        if place.part == "memory":
            return float(row_bytes(place))
        if place.part == "floor":
            return results.least_us(timed(place), limits.tflops)
        if place.part == "traffic":
            return served.p95(results, place, self.baselines)
        if place.part.startswith(COPY):
            return results.copy_us(timed(place))
        if place.part.startswith(LEAST):
            return results.copy_us(timed(place)) + results.launch_us(timed(place).part)
        try:
            own = float(results.timing(place)[unit])
        except KeyError:
            raise Missing(f"no {unit} of {place.operation!r}") from None
        if unit != "us":
            return own
        others = [results.us(other) for other in unstable(self.gates, self.results, place)]
        return (min if baseline else max)([own, *others])

    def instabilities(self, cell: Cell) -> Iterator[str]:
        """What several parts of the run measured differently."""
        for place in sources(cell):
            for other in unstable(self.gates, self.results, place):
                both = (f"{self.results.us(at):.1f} us in {at.part}" for at in (place, other))
                yield f"unstable: {place.operation} of {place.shape} at {place.batch} took {', '.join(both)}"

    def error(self, cell: Cell, unit: str) -> float:
        """The relative error of the value, from the noise of its measurements; memory has none."""
        if unit == "memory":
            return 0.0
        noises = []
        for side in (cell.over, cell.under):
            found = [self.results.timings[p] for p in map(timed, side) if p in self.results.timings]
            if found:
                noises.append(min(found, key=lambda t: t["us"]).get("noise") or 0.0)
        return sqrt(sum(noise**2 for noise in noises))

    def obstacles(self, cell: Cell) -> Iterator[str]:
        """(2), except missing measurements."""
        limits, results = self.gates.limits, self.results
        for place in sources(cell):
            machine, timing = results.parts[place.part]["machine"], results.timing(place)
            yield from other_machine(self.gates, place.part, machine)
            yield from other_version(results, place, self.bars.peers)
            if not stands(place.part, machine, self.kernels):
                yield f"{place.part} was made with kernels {machine['kernels']}, which are not the current ones"
            noise, clock = timing.get("noise"), timing.get("clock_mhz")
            if noise is None or clock is None:
                yield f"{place.part} holds no noise or no clock of {place.operation}"
                continue
            highest = max(t.get("clock_mhz") or 0 for t in results.parts[place.part]["timings"])
            if not noise <= limits.noise:
                yield f"noise of {place.operation} {noise:.3f}, above {limits.noise}"
            if clock < limits.clock * highest:
                yield f"clock at {place.operation} {clock} MHz, of {highest}"
            yield from impossible(results, place, limits)
            off = self.off.get(name_of(place))
            if off and off.how in ("leapt", "new"):
                yield str(off)
            yield from slow_baseline(self.gates, results, place)

    def floor(self, row: Row) -> float | None:
        """The limit that the bytes set: for a speed-up at a given tau, from drafter and target; for kernels and steps, from
        the run. Raises: Missing."""
        table, cell, results = row.table, row.cell, self.results
        if row.kernel is not None:
            least = row.kernel.floor
            return (float(least) if least else None) if isinstance(least, str) else least(results)
        over, under = cell.over[0], cell.under[0]
        if table.kind in ("step", "simulated acceptance") and over.part == under.part == "bench":
            each = [results.least_us(place, self.gates.limits.tflops) for place in (over, under)]
            floor = cell.times * cell.tau * each[0] / each[1]
            return floor if table.kind == "step" else min(floor, self.gates.dims[over.shape].floor(cell.tau))
        if table.kind == "simulated acceptance":
            return self.gates.dims[over.shape].floor(cell.tau)
        if table.kind != "kernel" or not (results.timing(over).get("bytes") and results.timing(under).get("bytes")):
            return None
        both = [results.copy_us(place) + results.launch_us(place.part) for place in (over, under)]
        return cell.times * both[0] / both[1]


def judge(gates: Gates, results: Results, kernels: str, bars: Bars, of: Iterable[Row] | None = None) -> Iterator[Judged]:
    """Every row, or those that are given."""
    off = {m.name: m for m in moved(bars, times(results), gates.limits, gates.slacks)}
    yield from map(Judge(gates, results, held(results, bars), kernels, bars, off), rows(gates) if of is None else of)


def sources(cell: Cell) -> list[At]:
    """The measurements that a cell uses."""
    made_of = (served.sources(p) if p.part == "traffic" else [timed(p)] for p in (*cell.over, *cell.under))
    return list(dict.fromkeys(place for places in made_of for place in places if place.part != "memory"))


def other_machine(gates: Gates, part: str, machine: dict[str, object]) -> Iterator[str]:
    """Why a part does not come from the gated GPU and versions."""
    limits = gates.limits
    if machine["gpu"] != limits.gpu:
        yield f"made on {machine['gpu']}, not {limits.gpu}"
    for name in ("torch", "triton"):
        version, wanted = str(machine.get(name)), getattr(limits, name)
        if version.partition("+")[0] != wanted:
            yield f"{part} was made with {name} {version}, not {wanted}"


def slow_baseline(gates: Gates, results: Results, place: At) -> Iterator[str]:
    """Compares our baseline with its bytes, and with the best peer's in the same run."""
    named = f"{place.part}/{place.operation}"
    for baseline in gates.baselines:
        if place.shape not in baseline.dims or named not in (*baseline.serves, baseline.ours):
            continue
        most = baseline.over_bytes.get(str(place.batch))
        if most is not None:
            share = results.us(place) / least_of(gates, results, place)
            if not share <= most:
                yield f"our baseline {place.operation} takes {share:.2f} of its bytes in {place.part}, above {most}"
        try:
            ours, theirs = (results.us(at(f"{name}/{place.batch}", place.shape)) for name in (baseline.ours, baseline.peer))
        except (Missing, ValueError):
            continue  # no peer was timed at this batch; the report names the peers
        if not ours <= gates.limits.baseline * theirs:
            yield f"our {baseline.ours} takes {ours / theirs:.2f} of {baseline.peer.split(', ')[-1]}'s at batch {place.batch}"


def least_of(gates: Gates, results: Results, place: At) -> float:
    """The least time of an engine's step, or of a launch: its bytes at the run's copy bandwidth. Raises: Missing."""
    return results.least_us(place, gates.limits.tflops) if place.part == "bench" else least_us(results, place)


def unstable(gates: Gates, results: Results, place: At) -> list[At]:
    """The same measurement in other parts of the run, if it differs by more than the noise."""
    named, found = f"{place.part}/{place.operation}", []
    for baseline in gates.baselines:
        alike = (baseline.ours, *(name for name in baseline.serves if name.endswith("/step")))
        if place.shape in baseline.dims and named in alike:
            found += [at(f"{name}/{place.batch}", place.shape) for name in alike if name != named]
    own = results.timing(place)
    return [other for other in found if other in results.timings and apart(gates, own, results.timing(other))]


def apart(gates: Gates, a: dict[str, float], b: dict[str, float]) -> bool:
    noise = sqrt((a.get("noise") or 0.0) ** 2 + (b.get("noise") or 0.0) ** 2)
    return not max(a["us"], b["us"]) <= min(a["us"], b["us"]) * (1 + gates.limits.apart + 3 * noise)
