"""Why targets of the kernels are missed: `missed.toml`, written by hand.

An entry covers the cells of one row of the table, for the shapes and batches that it names, or all if it names none.
`report.missed_cells` compares the entries with a run.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .targets import Cell

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
