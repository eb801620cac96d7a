"""Why a target is missed: `missed.toml`, written by hand, joined with the table of a run.

An entry speaks for the cells of one row of the table, of the shapes and batches that it names, all of them where it names
none. Every cell that misses its target needs an entry, and every entry a cell that misses: what is explained and holds is
a fault as much as what misses and is not explained.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .measured import Missing, Results
from .targets import Cell, cells

FILE = Path(__file__).parent / "missed.toml"


@dataclass(frozen=True)
class Reason:
    """What bounds some cells, and what was tried. `holding`: words that the cell's name must hold."""

    row: str
    bounds: str
    tried: str
    shapes: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    holding: str = ""

    def covers(self, cell: Cell) -> bool:
        return (
            cell.row == self.row
            and (not self.shapes or cell.shape in self.shapes)
            and (not self.batches or cell.batch in self.batches)
            and self.holding in cell.what
        )


@cache
def reasons(file: Path = FILE) -> tuple[Reason, ...]:
    """Raises: TypeError for an entry with a field too many or too few."""
    found: list[dict[str, Any]] = tomllib.loads(file.read_text())["missed"]
    held: list[dict[str, Any]] = [{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()} for entry in found]
    return tuple(Reason(**entry) for entry in held)


def missed(results: Results) -> list[Cell]:
    """The cells that were measured and do not hold."""
    found = []
    for cell in cells():
        try:
            if not cell.holds(cell.reached(results)):
                found.append(cell)
        except Missing:
            continue
    return found


def faults(results: Results, given: tuple[Reason, ...]) -> Iterator[str]:
    """Cells without an entry, and entries without a cell."""
    short = missed(results)
    for cell in short:
        if not any(reason.covers(cell) for reason in given):
            yield f"{cell.what}, {cell.shape}, {cell.batch}: missed, and {FILE.name} does not say what bounds it"
    for reason in given:
        if not any(reason.covers(cell) for cell in short):
            yield f"{FILE.name}: {reason.row}, {', '.join(reason.shapes) or 'any shape'}: explains nothing that is missed"


def text(results: Results, given: tuple[Reason, ...]) -> Iterator[str]:
    """A paragraph for each entry: how far off, what bounds it, what was tried."""
    short = missed(results)
    for reason in given:
        own = [cell for cell in short if reason.covers(cell)]
        if own:
            worst = max(own, key=lambda cell: apart(cell, results))
            where = f"{', '.join(dict.fromkeys(cell.shape for cell in own))}"
            sign = ">=" if worst.least else "<="
            at = f"{worst.what}, batch {worst.batch}: {worst.reached(results):.2f} for {sign} {worst.target}"
            yield f"- **{reason.row}**, {where}: {len(own)} cells, farthest {at}. {reason.bounds} Tried: {reason.tried}"


def apart(cell: Cell, results: Results) -> float:
    """How far a cell is from its target, in parts of it."""
    value = cell.reached(results)
    return cell.target / value if cell.least else value / cell.target
