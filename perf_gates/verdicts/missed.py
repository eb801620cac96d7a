"""Why targets are missed: `missed.toml`, written by hand, joined with the table of a run.

An entry covers the cells of one row of the table, for the shapes and batches that it names, or all if it names
none. Every cell that misses its target needs an entry, and every entry a cell that misses: an unneeded entry is
a fault too.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .measured import Missing, Results
from .targets import Cell, every

FILE = Path(__file__).parent.parent / "missed.toml"


@dataclass(frozen=True)
class Reason:
    """What limits some cells, and what was tried. `holding`: text that the cell's name must contain."""

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
    """The entries. Raises: TypeError for an entry with missing or unknown fields."""
    found: list[dict[str, Any]] = tomllib.loads(file.read_text())["missed"]
    held: list[dict[str, Any]] = [{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()} for entry in found]
    return tuple(Reason(**entry) for entry in held)


def missed(results: Results) -> list[Cell]:
    """The measured cells that miss their target."""
    found = []
    for cell in every():
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
            yield f"{cell.what}, {cell.shape}, {cell.batch}: misses its target, and {FILE.name} does not say why"
    for reason in given:
        if not any(reason.covers(cell) for cell in short):
            yield (
                f"{FILE.name}: {reason.row}, {', '.join(reason.shapes) or 'any shape'}: "
                "it explains no cell that misses its target; delete it"
            )


def text(results: Results, given: tuple[Reason, ...]) -> Iterator[str]:
    """A paragraph for each entry: how far off, what limits it, what was tried."""
    short = missed(results)
    for reason in given:
        own = [cell for cell in short if reason.covers(cell)]
        if own:
            worst = max(own, key=lambda cell: apart(cell, results))
            where = f"{', '.join(dict.fromkeys(cell.shape for cell in own))}"
            sign = ">=" if worst.least else "<="
            at = f"{worst.what}, batch {worst.batch}: {worst.reached(results):.2f}, target {sign} {worst.target}"
            yield f"- **{reason.row}**, {where}: {len(own)} cells; the farthest: {at}. {reason.bounds} Tried: {reason.tried}"


def apart(cell: Cell, results: Results) -> float:
    """The relative distance of a cell from its target."""
    value = cell.reached(results)
    return cell.target / value if cell.least else value / cell.target
