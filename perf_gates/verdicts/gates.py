"""The gates of `gates.toml`: read, and refused if a name, a unit or a reason is missing."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .measured import At

FILE = Path(__file__).parent.parent / "gates.toml"
KINDS = ("kernel", "step", "memory", "closed form", "simulated acceptance", "simulated traffic", "trained")
FIGURES = ("derived", "another", "ours")
"""Kinds of figures that no paper prints: computed from printed ones, measured by others, measured by us."""
DOCUMENT = re.compile(r"^(Snakes and Ladders|STree|Mamba Drafters|ReplaySSM), (table|figure|section) [\d.]+")
NAMED = re.compile(r"^(?P<part>\w+)(?::(?P<dims>[^/]+))?/(?P<operation>.+)/(?P<batch>\d+)$")


class GateError(ValueError):
    """`gates.toml` holds an invalid gate."""


@dataclass(frozen=True)
class Limits:
    """What makes a measurement comparable, and what a gate must notice. Units: shares, except the rates and the launch."""

    gpu: str
    torch: str
    triton: str
    noise: float
    clock: float
    baseline: float
    bandwidth_tb_s: float
    tflops: float
    launch_us: float
    delay: float
    regression: float
    runs: int
    significance: float
    apart: float
    near: float
    leap: float
    memory: float


@dataclass(frozen=True)
class Slack:
    """How far two runs of the same code may differ, for measurements whose names match a pattern. `share`: of the limit."""

    of: str
    share: float
    reason: str


@dataclass(frozen=True)
class Baseline:
    """A kernel of ours that others are compared with, the peer's of its kind, and the measurements it covers.

    `over_bytes`: the most that it may take, by batch, in units of its bytes at copy bandwidth and one launch.
    """

    ours: str
    dims: tuple[str, ...]
    serves: tuple[str, ...]
    over_bytes: dict[str, float]
    peer: str = ""


@dataclass(frozen=True)
class Dims:
    """A model: its subject, the bytes that its forward pass reads, those of a forward of its drafter, and how many of
    them."""

    of: str
    target_gb: float
    drafter: str = ""
    draft_gb: float = 0.0
    forwards: int = 0
    state: tuple[int, ...] = ()

    def floor(self, tau: float) -> float:
        """The most that tau tokens per step can gain: tau / (1 + bytes drafted / bytes of the target)."""
        return tau / (1 + self.forwards * self.draft_gb / self.target_gb)


@dataclass(frozen=True)
class Counted:
    """A kernel in the interpreter: how often it reads and writes its state, in states."""

    case: str
    reads: int
    writes: int


@dataclass(frozen=True)
class Launches:
    """Most launches of a step: kernels and operations in each layer, and others outside the layers."""

    step: str
    layer: tuple[int, int]
    beside: tuple[int, int]


@dataclass(frozen=True)
class Core:
    """A pair of the core set: two operations at the same dims and batch, and our best ratio (None: that of their limits)."""

    name: str
    dims: str
    over: str
    under: str
    batch: int
    best: float | None = None


@dataclass(frozen=True)
class Cell:
    """One figure: `times` tau over / under, of the smallest of each. Units: none.

    `paper` is printed, at a `row` and a `column` of the table's place (None if nothing is printed): a number, or the ratio of
    two. `figure` is of another `kind`, and `of` says from what it is derived, or links to who measured it.
    """

    at: str
    target: float
    over: tuple[At, ...]
    under: tuple[At, ...]
    paper: float | None = None
    row: str = ""
    column: str = ""
    figure: float | None = None
    kind: str = ""
    of: str = ""
    times: float = 1.0
    tau: float = 1.0


@dataclass(frozen=True)
class Table:
    """One table or figure of a paper, or a part of it. `sense`: whether the target is an upper or a lower limit."""

    id: str
    source: str
    dims: str
    kind: str
    sense: str
    weights: str
    reason: str
    cells: tuple[Cell, ...]
    bounds: str = ""
    of_floor: float = 0.0
    """The share of a cell's floor that is its target: for a lower limit, if that is more than the cell's own target; for an
    upper limit, a share above 1."""
    speed_ups: bool = False
    """Whether the page shows the speed-up of a cost: tau over the cost, for every tau that a window can have."""

    def holds(self, value: float, target: float) -> bool:
        return value <= target if self.sense == "most" else value >= target


@dataclass(frozen=True)
class Gates:
    """All gates."""

    limits: Limits
    slacks: tuple[Slack, ...]
    baselines: tuple[Baseline, ...]
    dims: dict[str, Dims]
    bytes: tuple[Counted, ...]
    core: tuple[Core, ...]
    launches: tuple[Launches, ...]
    drafting: dict[str, int]
    tables: tuple[Table, ...]
    lacking: dict[str, str]
    """Cells missing from the committed results, as `table, cell`, with the reason. A cell that is measured must not be
    listed."""

    def table(self, id_: str) -> Table:
        """A table. Raises: GateError for an unknown id."""
        for table in self.tables:
            if table.id == id_:
                return table
        raise GateError(f"table is {id_!r}; it must be one of {', '.join(t.id for t in self.tables)}")

    def target(self, table: Table, cell: Cell, floor: float | None = None) -> float:
        """The threshold of a cell. `floor` is that of the run (None: that of the dims at which the cell is measured)."""
        if not table.of_floor:
            return cell.target
        share = table.of_floor * (self.dims[cell.over[0].shape].floor(cell.tau) if floor is None else floor)
        return max(cell.target, round(share, 2))


def at(name: str, dims: str) -> At:
    """A measurement by its name in the file.

    Raises: GateError.
    """
    found = NAMED.match(name)
    if found is None:
        raise GateError(f"a measurement is {name!r}; it must be part/operation/batch or part:dims/operation/batch")
    return At(found["part"], found["dims"] or dims, found["operation"], int(found["batch"]))


@cache
def load(file: Path = FILE) -> Gates:
    """Reads the gates. Raises: GateError for missing or unknown fields, repeated names, unknown dims, or no reason."""
    try:
        return _gates(tomllib.loads(file.read_text()))
    except (TypeError, KeyError) as error:
        raise GateError(f"{file.name}: {error}") from None


def _gates(read: dict[str, Any]) -> Gates:
    dims = {name: Dims(**_tuples(fields)) for name, fields in read["dims"].items()}
    tables = tuple(_table(entry) for entry in read["table"])
    gates = Gates(
        Limits(**read["limits"]),
        tuple(Slack(**entry) for entry in read["slack"]),
        tuple(Baseline(**_tuples(entry)) for entry in read["baseline"]),
        dims,
        tuple(Counted(**entry) for entry in read["bytes"]),
        tuple(Core(**entry) for entry in read["core"]),
        tuple(Launches(**_tuples(entry)) for entry in read["launches"]),
        read["drafting"],
        tables,
        read["lacking"],
    )
    if faults := list(_faults(gates)):
        raise GateError("; ".join(faults))
    return gates


def _table(entry: dict[str, Any]) -> Table:
    cells = []
    for fields in entry["cells"]:
        named = {side: tuple(at(name, entry["dims"]) for name in fields[side]) for side in ("over", "under")}
        cells.append(Cell(**(fields | named)))
    return Table(**(entry | {"cells": tuple(cells)}))


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _faults(gates: Gates) -> Iterator[str]:
    ids = [table.id for table in gates.tables]
    yield from (f"the table {name!r} appears twice" for name in sorted({i for i in ids if ids.count(i) > 1}))
    for table in gates.tables:
        named = [cell.at for cell in table.cells]
        yield from (f"{table.id}: {name!r} appears twice" for name in sorted({n for n in named if named.count(n) > 1}))
        if table.dims not in gates.dims:
            yield f"{table.id}: dims {table.dims!r} do not exist"
        if table.kind not in KINDS or table.sense not in ("most", "least"):
            yield f"{table.id}: kind {table.kind!r} or sense {table.sense!r}; give one of {KINDS} and most or least"
        yield from (f"{table.id}: no {name}" for name in ("source", "weights", "reason") if not getattr(table, name))
        for cell in table.cells:
            yield from (f"{table.id}: {cell.at!r}: {fault}" for fault in _unsourced(table, cell))
        yield from (f"{table.id}: {cell.at!r} compares nothing" for cell in table.cells if not (cell.over and cell.under))


def _unsourced(table: Table, cell: Cell) -> Iterator[str]:
    """What is missing in the source of a figure."""
    if cell.paper is not None and not (cell.row and cell.column and DOCUMENT.match(table.source)):
        yield "a printed figure needs its document with table or figure, its row and its column"
    if cell.figure is not None and not (cell.kind in FIGURES and cell.of):
        yield f"a figure that is not printed needs a kind of {FIGURES}, and `of`, where it comes from"
    if cell.kind == "another" and not cell.of.startswith("https://"):
        yield "a figure measured by others needs its link"
    if cell.paper is not None and cell.figure is not None:
        yield "a cell has a printed figure (`paper`) or another one (`figure`), not both"
