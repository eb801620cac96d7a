"""Parts of a run, made for the gates or taken from the committed one and changed; and how a cell of them is judged."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perf_gates import cli
from perf_gates.ratchet import bars
from perf_gates.ratchet.bars import Bars
from perf_gates.ratchet.rows import Row
from perf_gates.verdicts import gates
from perf_gates.verdicts.gates import Cell, Gates, Table
from perf_gates.verdicts.measured import At, Results
from perf_gates.verdicts.verdict import Judged, judge

Parts = dict[str, dict[str, Any]]
Edit = Callable[[Parts], None]
ROOT = Path(__file__).parents[2]
GATES = gates.load()
PLACES = [place for table in GATES.tables for cell in table.cells for place in (*cell.over, *cell.under)]
COMMITTED = Results(cli.RESULTS)
KERNELS = "k" * 16
MACHINE: dict[str, Any] = {
    "gpu": GATES.limits.gpu, "kernels": KERNELS, "torch": GATES.limits.torch, "triton": GATES.limits.triton,
    "commit": "c" * 40, "copy_bytes_per_us": 1e6, "empty_launch_us": 1.0,
}  # fmt: skip
"""The machine that the gates name."""
TABLE = Table("t", "a paper, table 1", "mamba2-2.7b", "kernel", "most", "random", "Because.", (), bounds="bound by something")
CELL = Cell("c", 1.1, (At("steps", "mamba2-2.7b", "scan", 16),), (At("steps", "mamba2-2.7b", "step", 16),), 1.2)
"""1.05 in the made run."""


def timing(operation: str, us: float, size: float, batch: int = 16, **more: Any) -> dict[str, Any]:
    made = {"model": "mamba2-2.7b", "operation": operation, "batch": batch, "us": us, "bytes": size, "noise": 0.001}
    return made | {"clock_mhz": 1980} | more


def written(path: Path, parts: Parts) -> Results:
    for part, found in parts.items():
        (path / f"{part}.json").write_text(json.dumps(found))
    return Results(path)


def part(*timings: dict[str, Any], **machine: Any) -> dict[str, Any]:
    """A whole part on that machine, but for what is given of it."""
    return {"machine": MACHINE | machine, "complete": True, "errors": [], "timings": list(timings)}


def folder(path: Path, edit: Edit | None = None) -> Results:
    """A scan that takes 1.05 of a step, our step beside vLLM's, all as it should be."""
    parts = {
        "steps": part(timing("step", 20.0, 17_000_000), timing("scan", 21.0, 18_000_000)),
        "peers": part(timing("step, ours", 20.0, 17_000_000), timing("step, vLLM", 19.5, 17_000_000)),
    }
    if edit:
        edit(parts)
    return written(path, parts)


def edited(path: Path, edit: Edit, only: tuple[str, ...] = ()) -> Results:
    """The committed results after an edit, in a folder of their own; of some parts, or of all."""
    path.mkdir(exist_ok=True)
    parts = copy.deepcopy({name: found for name, found in COMMITTED.parts.items() if not only or name in only})
    edit(parts)
    return written(path, parts)


def at(place: At, change: Callable[[dict[str, Any]], Any]) -> Edit:
    """Changes one measurement."""

    def edit(parts: Parts) -> None:
        names = place.shape, place.operation, place.batch
        (found,) = (t for t in parts[place.part]["timings"] if (t["model"], t["operation"], t["batch"]) == names)
        change(found)

    return edit


def bars_of(results: Results, *missed: str) -> Bars:
    """The limits are what was measured."""
    return Bars({}, "as they are", bars.times(results), dict.fromkeys(missed, 0.0))


def judged(results: Results, table: Table = TABLE, cell: Cell = CELL, of: Gates = GATES, stood: Bars | None = None) -> Judged:
    (found,) = judge(of, results, KERNELS, stood or bars_of(results), [Row(table, cell)])
    return found


def pytest_said(
    *words: str, at: Path = ROOT, without: str = "PYTEST_XDIST", **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Pytest in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(without)} | variables
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True, check=False, timeout=250)
