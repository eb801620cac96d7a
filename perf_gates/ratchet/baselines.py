"""The one rule of verdicts and of new limits: a slower baseline makes no cell pass.

baseline      the denominator of a figure: `under` if the target is an upper limit, `over` if it is a lower one
it counts     min(measured, limit)        in microseconds and in bytes; a copy and an empty launch of a part too     (1)
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from ..verdicts import served
from ..verdicts.gates import Gates, Table
from ..verdicts.measured import At, Results
from .bars import COPY_BYTES, MACHINE, Bar, Bars, name_of, times
from .rows import COPY, LEAST, Row, rows, timed


def denominator(table: Table) -> str:
    """Which side of the table's figures is the baseline."""
    return "under" if table.sense == "most" else "over"


def held(results: Results, bars: Bars) -> Results:
    """A run as it counts in baselines: nothing is slower or larger than its limit (1). What is not a number stays so."""
    found = copy(results)
    found.parts = {part: read | {"machine": _machine(part, read["machine"], bars)} for part, read in results.parts.items()}
    found.timings = {at: _timing(timing, bars.times.get(name_of(at))) for at, timing in results.timings.items()}
    return found


def _least(now: float, limit: float) -> float:
    """(1). A limit of 0 was not measured."""
    return limit if limit and now > limit else now


def _timing(timing: dict[str, Any], bar: Bar | None) -> dict[str, Any]:
    limits = {"us": bar.us, "memory": bar.memory} if bar else {}
    return timing | {name: _least(timing[name], limit) for name, limit in limits.items() if name in timing}


def _machine(part: str, machine: dict[str, Any], bars: Bars) -> dict[str, Any]:
    copied, launch = (bars.times.get(f"{part}/{MACHINE}/{of}/1") for of in ("copy", "empty launch"))
    found = dict(machine)
    if copied and "copy_bytes_per_us" in machine:
        found["copy_bytes_per_us"] = COPY_BYTES / _least(COPY_BYTES / machine["copy_bytes_per_us"], copied.us)
    if launch and "empty_launch_us" in machine:
        found["empty_launch_us"] = _least(machine["empty_launch_us"], launch.us)
    return found


@dataclass(frozen=True)
class Kept:
    """A baseline of cells that a run measured as slower or larger than its limit, which stays. `unit`: us or memory."""

    name: str
    unit: str
    before: float
    after: float
    cells: tuple[str, ...]

    def __str__(self) -> str:
        word = "us" if self.unit == "us" else "bytes"
        return (
            f"{self.name} stays at {self.before:.2f} {word}, although it took {self.after:.2f}: a slower baseline must not "
            f"make a cell pass ({'; '.join(self.cells)})"
        )


def kept(gates: Gates, results: Results, bars: Bars) -> tuple[Kept, ...]:
    """The limits that a run cannot raise, because cells have them as baselines (1)."""
    now, cells = times(results), dict[tuple[str, str], list[str]]()
    for row in rows(gates):
        for name, unit in _baselines(row):
            cells.setdefault((name, unit), []).append(row.name)
    found = []
    for (name, unit), names in cells.items():
        if name in now and name in bars.times:
            before, after = getattr(bars.times[name], unit), getattr(now[name], unit)
            if _least(after, before) != after:
                found.append(Kept(name, unit, before, after, tuple(dict.fromkeys(names))))
    return tuple(found)


def without(kept: tuple[Kept, ...], now: dict[str, Bar], bars: Bars) -> dict[str, Bar]:
    """The measurements of a run, with the limits of these baselines as they were."""
    found = dict(now)
    for one in kept:
        old = bars.times[one.name]
        change = {"us": old.us, "noise": old.noise} if one.unit == "us" else {"memory": old.memory}
        found[one.name] = replace(found[one.name], **change)
    return found


def _baselines(row: Row) -> Iterator[tuple[str, str]]:
    """The limits that a row's baseline is made of, each with its unit."""
    for place in getattr(row.cell, denominator(row.table)):
        yield from _limits(place, row.unit)


def _limits(place: At, unit: str) -> Iterator[tuple[str, str]]:
    at = timed(place)
    if place.part == "traffic":
        yield from ((name_of(step), unit) for step in served.sources(place))
    elif place.part == "floor" or place.part.startswith((COPY, LEAST)):
        yield f"{at.part}/{MACHINE}/copy/1", unit
        if place.part.startswith(LEAST):
            yield f"{at.part}/{MACHINE}/empty launch/1", unit
    elif place.part != "memory":
        yield name_of(place), unit
