"""The verdict of a gate on a run: pass, near, known miss, to tighten, FAIL or unknown, and why. Unknown never counts as
passed.

    value         as `value.Values` computes it                                                (1)
    unknown       a measurement is missing, of other code (`digest.record`), has no limit, is impossible, or was made on
                  another GPU, with other versions, of a peer of another version than the limit's, with a clock below the
                  limit, or against a baseline that is slower than its bytes or the best peer's kernel of its kind in the
                  same run allow; or its noise is above the limit, and the verdicts on the two ends of the value differ (2)
    FAIL          a measurement is slower, or takes more memory, than its limit (`ratchet.bars`), or the target is missed and
                  was reached when the limit was written                                       (3)
    to tighten    a measurement is faster than its limit, or a known miss reaches its target, or misses it only because the
                  baseline is faster: `ssmspec gates accept` writes the new limit              (4)
    known miss    the target is missed as it was when the limit was written                  (5)
    near          the target lies within the error of the value, or is missed by no more than runs differ  (6)
    pass          the target is reached, with the error of the value counted against it

Noise is no excuse where it changes nothing: 0.05 misses a target of 0.83, whether its error is 1 % or 3 %. The baseline of
a figure is its denominator: `under` if the target is an upper limit, `over` if it is a lower one. A slower
baseline makes no cell pass (1), and a faster one makes none fail (4).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from math import inf, sqrt

from ..digest import record
from ..ratchet.bars import Bars, Moved, moved, name_of, times
from ..ratchet.baselines import held
from ..ratchet.peers import other_version
from ..ratchet.possible import impossible
from ..ratchet.rows import Row, rows, timed
from .floors import least_us
from .gates import Cell, Gates, Table, at
from .measured import At, Missing, Results, fault
from .value import Values, sources


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
    """Gates, a run, the values of its cells, the current hash of the kernels, the limits; and the measurements off their
    limits, by name."""

    gates: Gates
    results: Results
    values: Values
    kernels: str
    bars: Bars
    off: dict[str, Moved]

    def __call__(self, row: Row) -> Judged:
        cell, gates = row.cell, self.gates
        listed = gates.lacking.get(row.name, "") or self.until_measured_again(row)
        try:
            value, ends = self.values(row), self.values.ends(row)
            floor = self.floor(row)
            why, noise = list(self.obstacles(row)), list(dict.fromkeys(self.values.noisy(row)))
        except Missing as missing:
            return Judged(row, Verdict.UNKNOWN, gates.target(row.table, cell), why=f"not measured: {missing}", listed=listed)
        target = gates.target(row.table, cell, floor)
        found = Judged(row, Verdict.UNKNOWN, target, value, floor, error=self.error(row), listed=listed)
        found = replace(found, unstable="; ".join(self.values.differences(row)))
        tried = [replace(found, value=end, error=0.0) for end in ends] if noise else [found]
        judged = [self.held(one) for one in tried]
        if len({one.verdict for one in judged}) > 1:
            why += noise
        if why:
            return replace(found, why="; ".join(dict.fromkeys(why)))  # (2)
        told = [judged[0].why, *(f"{line}, which does not change the verdict" for line in noise)]
        return replace(found, verdict=judged[0].verdict, why="; ".join(filter(None, told)))

    def until_measured_again(self, row: Row) -> str:
        """Why a cell is unknown because of code that has changed, as it is recorded; empty if it is not recorded."""
        parts = self.results.parts
        held = [(p, parts[p.part]["machine"]) for p in sources(row.cell) if p.part in parts]
        told = (record.listed(p.part, m.get("commit", ""), f"{p.shape}/{p.operation}/{p.batch}") for p, m in held)
        return "; ".join(dict.fromkeys(filter(None, told)))

    def held(self, j: Judged) -> Judged:
        """(3) to (6) for a cell that can be compared. NaN never passes."""
        slower = ("slower",) if j.row.unit == "us" else ("larger",)
        faster = ("faster",) if j.row.unit == "us" else ("smaller",)
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

    def error(self, row: Row) -> float:
        """The relative error of the value, from the noise of its measurements; memory has none."""
        if row.unit == "memory":
            return 0.0
        noises = []
        for side in (row.cell.over, row.cell.under):
            found = [self.results.timings[p] for p in map(timed, side) if p in self.results.timings]
            if found:
                noises.append(min(found, key=lambda t: t["us"]).get("noise") or 0.0)
        return sqrt(sum(noise**2 for noise in noises))

    def obstacles(self, row: Row) -> Iterator[str]:
        """(2), except missing measurements and noise that is known."""
        limits, results = self.gates.limits, self.results
        for place in sources(row.cell):
            machine, timing = results.parts[place.part]["machine"], results.timing(place)
            yield from other_machine(self.gates, place.part, machine)
            yield from other_version(results, place, self.bars.peers)
            if other := fault(place.part, machine, self.kernels, f"{place.shape}/{place.operation}/{place.batch}"):
                yield other
            noise, clock = timing.get("noise"), timing.get("clock_mhz")
            if noise is None or not 0 <= noise < inf or clock is None:
                yield f"{place.part} holds no noise or no clock of {place.operation}"
                continue
            highest = max(t.get("clock_mhz") or 0 for t in results.parts[place.part]["timings"])
            if clock < limits.clock * highest:
                yield f"clock at {place.operation} {clock} MHz, of {highest}"
            yield from impossible(results, place, limits)
            off = self.off.get(name_of(place))
            if off and off.how in ("leapt", "new", *(("noisy",) if row.unit == "us" else ())):
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
    values = Values(gates.limits, results, held(results, bars))
    yield from map(Judge(gates, results, values, kernels, bars, off), rows(gates) if of is None else of)


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
