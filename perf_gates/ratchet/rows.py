"""All figures in one form: the cells of the papers' tables, and those of the kernels' table.

A row of the kernels' table is a cell whose sides are times, or bytes at a part's own copy bandwidth:

    copy of PART        bytes / copy bandwidth
    least of PART       the same and one empty launch
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from ..verdicts import missed, targets
from ..verdicts.gates import Cell, Gates, Table
from ..verdicts.measured import At, Figure, OfCopy, OverFloor, Ratio

COPY, LEAST = "copy of ", "least of "


@dataclass(frozen=True)
class Row:
    """A cell in its table; those of the kernels' table have their floor and their peer."""

    table: Table
    cell: Cell
    kernel: targets.Cell | None = None

    @property
    def name(self) -> str:
        return f"{self.table.id}, {self.cell.at}"

    @property
    def unit(self) -> str:
        """What its sides are measured in: us or memory."""
        return "memory" if self.table.kind == "memory" else "us"


def rows(gates: Gates) -> Iterator[Row]:
    """The rows of the papers' tables, then those of the kernels'."""
    yield from (Row(table, cell) for table in gates.tables for cell in table.cells)
    yield from kernels()


@cache
def kernels() -> tuple[Row, ...]:
    return tuple(map(of_kernel, targets.every()))


def of_kernel(cell: targets.Cell) -> Row:
    """A cell of the kernels' table as a row."""
    over, under = sides(cell.reached)
    at = f"{cell.what}, {cell.shape}, batch {cell.batch}"
    bounds = next((reason.bounds for reason in missed.reasons() if reason.covers(cell)), "")
    sense = "least" if cell.least else "most"
    table = Table(
        id=f"kernels: {cell.row}",
        source="Ours: the kernels",
        dims=cell.shape,
        kind="kernel",
        sense=sense,
        weights="random",
        reason="the target of the kernel",
        cells=(),
        bounds=bounds,
    )
    return Row(table, Cell(at, cell.target, over, under), cell)


def sides(figure: Figure) -> tuple[tuple[At, ...], tuple[At, ...]]:
    """Numerator and denominator of a figure of the kernels' table. Raises: TypeError for another figure."""
    if isinstance(figure, Ratio):
        return figure.over, figure.under
    if isinstance(figure, OfCopy):
        return (replace(figure.at, part=COPY + figure.at.part),), (figure.at,)
    if isinstance(figure, OverFloor):
        return (figure.at,), (replace(figure.at, part=LEAST + figure.at.part),)
    raise TypeError(f"figure is {type(figure).__name__}; it must be Ratio, OfCopy or OverFloor")


def timed(place: At) -> At:
    """The measurement that a side uses."""
    for prefix in (COPY, LEAST):
        if place.part.startswith(prefix):
            return replace(place, part=place.part.removeprefix(prefix))
    return replace(place, part="bench") if place.part == "floor" else place
