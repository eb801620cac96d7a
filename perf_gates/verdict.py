"""What a gate says of a run: pass, fail, or not comparable, and why. The last is never green.

value = times tau min(over) / min(under)                                                        (1)
not comparable   a measurement is missing, or was made on another GPU, by other kernels, with noise above the limit or a
                 clock below it, or against a baseline of ours that the best peer's kernel of its kind beats by more than
                 the limit in the same run                                                      (2)
fail             the value misses its target                                                    (3)
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from . import served
from .allocated import row_bytes
from .gates import Cell, Gates, Table, at
from .measured import At, Missing, Results, stands


class Verdict(Enum):
    """Of one cell."""

    PASS = "pass"
    FAIL = "FAIL"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Judged:
    """A cell with its figure, where there is one. `floor`: the most, or the least, that bytes and launches allow."""

    table: Table
    cell: Cell
    verdict: Verdict
    target: float
    value: float | None = None
    floor: float | None = None
    why: str = ""


def judge(gates: Gates, results: Results, kernels: str) -> Iterator[Judged]:
    """Every cell of every table."""
    for table in gates.tables:
        for cell in table.cells:
            yield of_cell(gates, results, kernels, table, cell)


def of_cell(gates: Gates, results: Results, kernels: str, table: Table, cell: Cell) -> Judged:
    try:
        value = figure(gates, results, cell, "memory" if table.kind == "memory" else "us")
        floor = floor_of(gates, results, table, cell)
    except Missing as missing:
        return Judged(table, cell, Verdict.NOT_COMPARABLE, gates.target(table, cell), why=f"not measured: {missing}")
    target = gates.target(table, cell, floor)
    if why := "; ".join(dict.fromkeys(obstacles(gates, results, kernels, cell))):
        return Judged(table, cell, Verdict.NOT_COMPARABLE, target, value, floor, why)  # (2)
    held = table.holds(value, target)
    return Judged(
        table, cell, Verdict.PASS if held else Verdict.FAIL, target, value, floor, "" if held else table.bounds
    )  # (3)


def figure(gates: Gates, results: Results, cell: Cell, unit: str) -> float:
    """(1). Raises: Missing."""

    def of(place: At) -> float:
        if place.part == "memory":
            return float(row_bytes(place))
        if place.part == "floor":
            return results.least_us(step_of(place), gates.limits.tflops)
        return served.p95(results, place) if place.part == "traffic" else float(results.timing(place)[unit])

    def least(side: tuple[At, ...]) -> float:
        return min(map(of, side))

    try:
        return cell.times * cell.tau * least(cell.over) / least(cell.under)
    except KeyError:
        raise Missing(f"no {unit} of {cell.over[0].operation!r} or {cell.under[0].operation!r}") from None


def step_of(place: At) -> At:
    """The step that a floor is that of."""
    return replace(place, part="bench") if place.part == "floor" else place


def obstacles(gates: Gates, results: Results, kernels: str, cell: Cell) -> Iterator[str]:
    """(2), but for what is missing."""
    limits = gates.limits
    sides = map(step_of, (*cell.over, *cell.under))
    made_of = [served.sources(place) if place.part == "traffic" else [place] for place in sides]
    for place in (place for places in made_of for place in places if place.part != "memory"):
        machine, timing = results.parts[place.part]["machine"], results.timing(place)
        if machine["gpu"] != limits.gpu:
            yield f"made on {machine['gpu']}, not {limits.gpu}"
        if not stands(place.part, machine, kernels):
            yield f"{place.part} was made with kernels {machine['kernels']}, which are not those that stand"
        noise, clock = timing.get("noise"), timing.get("clock_mhz")
        if noise is None or clock is None:
            yield f"{place.part} holds no noise or no clock of {place.operation}"
            continue
        highest = max(t.get("clock_mhz") or 0 for t in results.parts[place.part]["timings"])
        if noise > limits.noise:
            yield f"noise of {place.operation} {noise:.3f}, above {limits.noise}"
        if clock < limits.clock * highest:
            yield f"clock at {place.operation} {clock} MHz, of {highest}"
        yield from slow_baseline(gates, results, place)


def slow_baseline(gates: Gates, results: Results, place: At) -> Iterator[str]:
    """Our baseline against the best peer's in the same run."""
    for baseline in gates.baselines:
        if place.shape not in baseline.dims or f"{place.part}/{place.operation}" not in baseline.serves:
            continue
        try:
            ours, theirs = (results.us(at(f"{name}/{place.batch}", place.shape)) for name in (baseline.ours, baseline.peer))
        except Missing:
            continue  # no peer was timed at this batch: what it would say is not known, and the report names the peers
        if ours > gates.limits.baseline * theirs:
            yield f"our {baseline.ours} takes {ours / theirs:.2f} of {baseline.peer.split(', ')[-1]}'s at batch {place.batch}"


def floor_of(gates: Gates, results: Results, table: Table, cell: Cell) -> float | None:
    """What the bytes allow: of a speed-up at a given tau, the drafter's and the target's; of kernels and steps, those of the
    run. Raises: Missing."""
    over, under = cell.over[0], cell.under[0]
    if table.kind in ("step", "simulated acceptance") and over.part == under.part == "bench":
        least = [results.least_us(place, gates.limits.tflops) for place in (over, under)]
        floor = cell.times * cell.tau * least[0] / least[1]
        return floor if table.kind == "step" else min(floor, gates.dims[over.shape].floor(cell.tau))
    if table.kind == "simulated acceptance":
        return gates.dims[over.shape].floor(cell.tau)
    if table.kind != "kernel" or not (results.timing(over).get("bytes") and results.timing(under).get("bytes")):
        return None
    times = [results.copy_us(place) + results.launch_us(place.part) for place in (over, under)]
    return cell.times * times[0] / times[1]
