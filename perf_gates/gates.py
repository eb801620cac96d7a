"""The gates as `gates.toml` has them: read, and refused where a name, a unit or a reason is missing."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .measured import At

FILE = Path(__file__).parent / "gates.toml"
KINDS = ("kernel", "step", "memory", "closed form", "simulated acceptance", "simulated traffic", "trained")
NAMED = re.compile(r"^(?P<part>\w+)(?::(?P<dims>[^/]+))?/(?P<operation>.+)/(?P<batch>\d+)$")


class GateError(ValueError):
    """`gates.toml` holds what no gate can be."""


@dataclass(frozen=True)
class Limits:
    """What makes a measurement comparable, and what a gate must notice. Shares, but for the rates and the launch."""

    gpu: str
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


@dataclass(frozen=True)
class Baseline:
    """A kernel of ours that others are set against, the peer's of its kind, and the measurements that it stands for."""

    ours: str
    peer: str
    dims: tuple[str, ...]
    serves: tuple[str, ...]


@dataclass(frozen=True)
class Dims:
    """A model: what it is of, the bytes that its forward pass reads, those of one forward of its drafter, and how many."""

    of: str
    target_gb: float
    drafter: str = ""
    draft_gb: float = 0.0
    forwards: int = 0
    state: tuple[int, ...] = ()

    def floor(self, tau: float) -> float:
        """The most that tau tokens a step can gain: tau / (1 + bytes drafted / bytes of the target)."""
        return tau / (1 + self.forwards * self.draft_gb / self.target_gb)


@dataclass(frozen=True)
class Counted:
    """A kernel in the interpreter: how often its state is read and written, in states."""

    case: str
    reads: int
    writes: int


@dataclass(frozen=True)
class Launches:
    """What a step may launch: kernels and operations, in each layer, and at most so many beside the layers."""

    step: str
    layer: tuple[int, int]
    beside: tuple[int, int]


@dataclass(frozen=True)
class Core:
    """A pair of the core set: two operations at the same dims and batch, and the best ratio that we have had."""

    name: str
    dims: str
    over: str
    under: str
    batch: int
    best: float


@dataclass(frozen=True)
class Cell:
    """One figure: `times` tau over / under, of the smallest of each. `paper`: None where it prints none. Units: none."""

    at: str
    target: float
    over: tuple[At, ...]
    under: tuple[At, ...]
    paper: float | None = None
    times: float = 1.0
    tau: float = 1.0


@dataclass(frozen=True)
class Table:
    """One table or figure of a paper, or a part of it. `sense`: the target is the most, or the least."""

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
    """The share of a cell's floor that is its target: of what is to be the least, where that is more than the target it
    names; of what is to be the most, a share above 1."""
    speed_ups: bool = False
    """Whether the page shows what a cost gains: tau over the cost, for every tau that a window can have."""

    def holds(self, value: float, target: float) -> bool:
        return value <= target if self.sense == "most" else value >= target


@dataclass(frozen=True)
class Gates:
    """All of them."""

    limits: Limits
    baselines: tuple[Baseline, ...]
    dims: dict[str, Dims]
    bytes: tuple[Counted, ...]
    core: tuple[Core, ...]
    launches: tuple[Launches, ...]
    drafting: dict[str, int]
    tables: tuple[Table, ...]
    lacking: dict[str, str]
    """Cells that the committed results do not hold, as `table, cell`, and why. One that they hold has no place here."""

    def table(self, id_: str) -> Table:
        """Raises: GateError for an id that no table has."""
        for table in self.tables:
            if table.id == id_:
                return table
        raise GateError(f"table came as {id_!r}; give one of {', '.join(t.id for t in self.tables)}")

    def target(self, table: Table, cell: Cell, floor: float | None = None) -> float:
        """The threshold of a cell. `floor` is that of the run (None: that of the dims that the cell is measured at)."""
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
        raise GateError(f"a measurement came as {name!r}; give part/operation/batch or part:dims/operation/batch")
    return At(found["part"], found["dims"] or dims, found["operation"], int(found["batch"]))


@cache
def load(file: Path = FILE) -> Gates:
    """Raises: GateError for a field that is missing or unknown, a name given twice, dims that are not there, no reason."""
    try:
        return _gates(tomllib.loads(file.read_text()))
    except (TypeError, KeyError) as error:
        raise GateError(f"{file.name}: {error}") from None


def _gates(read: dict[str, Any]) -> Gates:
    dims = {name: Dims(**_tuples(fields)) for name, fields in read["dims"].items()}
    tables = tuple(_table(entry) for entry in read["table"])
    gates = Gates(
        Limits(**read["limits"]),
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
    yield from (f"the table {name!r} comes twice" for name in sorted({i for i in ids if ids.count(i) > 1}))
    for table in gates.tables:
        named = [cell.at for cell in table.cells]
        yield from (f"{table.id}: {name!r} comes twice" for name in sorted({n for n in named if named.count(n) > 1}))
        if table.dims not in gates.dims:
            yield f"{table.id}: dims {table.dims!r} are not there"
        if table.kind not in KINDS or table.sense not in ("most", "least"):
            yield f"{table.id}: kind {table.kind!r} or sense {table.sense!r}; give one of {KINDS} and most or least"
        yield from (f"{table.id}: no {name}" for name in ("source", "weights", "reason") if not getattr(table, name))
        yield from (f"{table.id}: {cell.at!r} compares nothing" for cell in table.cells if not (cell.over and cell.under))
