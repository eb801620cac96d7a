"""The cost of every compiled kernel, compared with committed budgets: `python -m perf_gates.static.compiled`, on any machine.

Each entry of the catalogue is compiled for sm_80, sm_90 and sm_100, or those it names, with the tiles that its launcher
chooses there; and for sm_90 what else is timed (`timed_entries`), of which (1) and (4) are required. Of all others:

    no spills                          ptxas: 0 bytes of spill stores and loads, unless            (1)
                                       `spills.toml` names the entry and says why
    writes what it declares            the owners of all stores and atomics in the PTX             (2)
    wide loads                         at least 16 bytes per thread, or as the entry says,         (3)
                                       for the arguments named `wide`, in the machine code as in the PTX
    fits                               the shared memory that a block may have on the architecture (4)

Registers, shared memory, and the counts of loads and stores must equal those of `budgets.toml`: a better figure also fails,
until `--write` updates the budgets. They are valid for the version of Triton that they name, and each for the launch whose
digest it has (`digest.launches`): `--stale` names those that changed, and `--write` compiles only these.
"""

import re
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import cache
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import triton
import typer
from triton import knobs

from conformance.main import run_command
from ssmspec_ref.errors import OptionError

from ..digest import trees
from ..digest.launches import Codes, Tensors, described, disassembled, ir
from ..digest.texts import digest, text
from . import catalogue, ptx, timed_entries
from .capture import Built, Launch, build, launches_of
from .entry import ARCHITECTURES, Entry
from .on_device import on_device

BUDGETS, SPILLS = (Path(__file__).parent.parent / f"{name}.toml" for name in ("budgets", "spills"))
SHARED = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of shared memory a block may have, opted in: CUDA C++ Programming Guide, technical specifications."""
REWRITE = "python -m perf_gates.static.compiled --write"
USED = re.compile(r"Used (\d+) registers")
SPILLED = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class Cost:
    """One kernel on one architecture. Units: bytes; `registers` a thread; loads and stores are machine instructions."""

    registers: int
    spills: int
    stack: int
    shared: int
    loads: int
    wide_loads: int
    stores: int


@dataclass(frozen=True)
class Made:
    """What the budgets were written with: the version of Triton, of each row the digest of its launch, and the hash of the
    text of the kernels and of what measures them."""

    triton: str
    launches: dict[str, str]
    code: str = ""


@cache
def _codes() -> Codes:
    return Codes(ir, trees.codes())


def told(launch: Launch, capability: int) -> str:
    """The digest of a launch: all that the compiler and the GPU are given."""
    return digest(f"{_codes()(launch, capability)} {described(launch, Tensors().told)}")


@dataclass(frozen=True)
class Row:
    """A cost with its name, the kernel's faults that do not depend on a budget, and the digest of the launch."""

    name: str
    cost: Cost
    faults: tuple[str, ...]
    launch: str = ""


def rows(entry: Entry, capability: int) -> list[Row]:
    """Compiles an entry's kernels, and checks (1) to (4)."""
    result, everything = [], []
    for i, launch in enumerate(launches_on(entry, capability)):
        built, log = _compiled(launch, capability)
        sass = ptx.histogram(disassembled(built.compiled.asm["cubin"]))
        accesses = ptx.accesses(built.compiled.asm["ptx"], built.parameters)
        cost = _cost(built, log, sass)
        faults = [*_too_large(cost, capability, entry.name in reasons()), *_narrow(accesses, entry, sass)]
        result.append(Row(row_name(entry, i, launch, capability), cost, tuple(faults), told(launch, capability)))
        everything += accesses
    last = result[-1]
    return [*result[:-1], replace(last, faults=(*last.faults, *_undeclared(entry, everything)))]


def _undeclared(entry: Entry, accesses: list[ptx.Access]) -> Iterator[str]:
    """(2), over all kernels of an entry."""
    stores = [a for a in accesses if a.kind != "load"]
    if unknown := sum(not a.owners for a in stores):
        yield f"writes through {unknown} addresses of unknown origin"
    written = arguments(stores)
    if entry.stores is not None and written != entry.stores:
        yield f"writes {sorted(written)}, but declares {sorted(entry.stores)}"
    read = arguments([a for a in accesses if a.kind == "load"])
    if entry.wide - read:
        yield f"does not read {sorted(entry.wide - read)}, declared wide"


def arguments(accesses: list[ptx.Access]) -> set[str]:
    """The names of the arguments that are accessed, as an entry writes them: `ring_B`, also where a kernel takes `ring.B`."""
    return {name.replace(".", "_") for a in accesses for name in a.owners}


def _compiled(launch: Launch, capability: int) -> tuple[Built, str]:
    """A fresh compilation, and what ptxas printed."""
    log = StringIO()
    with tempfile.TemporaryDirectory() as cache, knobs.cache.scope(), knobs.nvidia.scope(), redirect_stdout(log):
        knobs.cache.dir, knobs.nvidia.dump_ptxas_log = cache, True
        return build(launch, capability), log.getvalue()


def _cost(built: Built, log: str, sass: Counter[str]) -> Cost:
    used, spilled = USED.search(log), SPILLED.search(log)
    if used is None or spilled is None:
        raise RuntimeError(f"ptxas reported no resources; it printed: {log!r}")
    stack, stores, loads = map(int, spilled.groups())
    count = {kind: sum(n for op, n in sass.items() if op.split(".")[0] in names) for kind, names in OPERATIONS.items()}
    return Cost(
        int(used[1]),
        stores + loads,
        stack,
        built.compiled.metadata.shared,
        count["load"],
        ptx.wide_loads(sass),
        count["store"],
    )


OPERATIONS = {"load": ("LDG", "LDGSTS"), "store": ("STG", "ATOMG", "RED", "REDG")}


@cache
def reasons() -> dict[str, str]:
    """Why entries may spill, by name."""
    return {
        name: group["reason"].strip() for group in tomllib.loads(SPILLS.read_text())["spills"] for name in group["entries"]
    }


def idle(reasons: Iterable[str], budget: dict[str, Cost]) -> list[str]:
    """Reasons for entries that spill nothing on any architecture."""
    spilling = {name.rsplit(" ", 2)[0] for name, cost in budget.items() if cost.spills}
    return [
        f"{name}: has a reason to spill in {SPILLS.name}, but does not spill; remove the reason"
        for name in reasons
        if name not in spilling
    ]


def _too_large(cost: Cost, capability: int, may_spill: bool) -> Iterator[str]:
    if cost.spills and not may_spill:  # (1)
        yield f"spills {cost.spills} bytes"
    if cost.shared > SHARED[capability]:  # (4)
        yield f"uses {cost.shared} bytes of shared memory, but a block has {SHARED[capability]}"


def _narrow(accesses: list[ptx.Access], entry: Entry, sass: Counter[str]) -> Iterator[str]:
    """(3)"""
    loads = [a for a in accesses if a.kind == "load" and a.owners & entry.wide]
    if narrow := sorted({f"{'/'.join(sorted(a.owners))} by {a.bytes}" for a in loads if a.bytes < entry.width}):
        yield f"loads {', '.join(narrow)} bytes, not {entry.width}"
    if ptx.wide_loads(sass, entry.width) < len(loads) - len(narrow):
        yield f"has {ptx.wide_loads(sass, entry.width)} wide loads in the machine code and {len(loads)} in the PTX"


def everything() -> Iterator[Entry]:
    """The catalogue, and what else is timed."""
    yield from catalogue.entries()
    yield from timed_entries.entries()


def launched() -> Iterator[tuple[str, Launch, int]]:
    """Every row, without compilation: its name, its launch, its architecture."""
    for entry in everything():
        for capability in entry.on:
            for i, launch in enumerate(launches_on(entry, capability)):
                yield row_name(entry, i, launch, capability), launch, capability


def launches_on(entry: Entry, capability: int) -> list[Launch]:
    """What an entry's launcher launches on an architecture."""
    with on_device(capability):
        return launches_of(entry.call)


def row_name(entry: Entry, i: int, launch: Launch, capability: int) -> str:
    """The name of launch i of an entry on an architecture, as the budgets have it."""
    return f"{entry.name} {i}:{launch.name} sm_{capability}"


def entry_name(row: str) -> str:
    """The entry of a row, with its architecture."""
    before, _, capability = row.rpartition(" ")
    return f"{before.rpartition(' ')[0]} {capability}"


def budgets() -> tuple[Made, dict[str, Cost]]:
    """What the budgets are valid for, and the budgets."""
    if not BUDGETS.exists():
        return Made(triton.__version__, {}), {}
    read = tomllib.loads(BUDGETS.read_text())
    launches = {name: cost.pop("launch") for name, cost in read["cost"].items()}
    return Made(read["triton"], launches, read["code"]), {name: Cost(**cost) for name, cost in read["cost"].items()}


def budgets_text(made: Made, costs: dict[str, Cost]) -> str:
    """The text of `budgets.toml`."""
    head = f'# Written by `{REWRITE}`.\ntriton = "{made.triton}"\ncode = "{made.code}"\n\n[cost]\n'
    rows = ((name, asdict(cost), made.launches[name]) for name, cost in costs.items())
    return head + "".join(
        f'"{name}" = {{ {", ".join(f"{k} = {v}" for k, v in cost.items())}, launch = "{launch}" }}\n'
        for name, cost, launch in rows
    )


def stale(held: Made, launches: dict[str, str]) -> list[str]:
    """Why budgets are not valid for these launches."""
    if held.triton != triton.__version__:
        return [f"the budgets are for triton {held.triton}, but this is {triton.__version__}; run `{REWRITE}`"]
    return [
        f"{name}: the budget is for another launch; run `{REWRITE}`"
        for name, launch in launches.items()
        if name in held.launches and held.launches[name] != launch
    ]


def compare(found: dict[str, Cost], made: Made, held: Made, budget: dict[str, Cost]) -> list[str]:
    """What differs from the budgets, in either direction; `made`: the launches of what was found."""
    if held.triton != made.triton:
        return stale(held, {})
    differences = stale(held, made.launches)
    for name, cost in found.items():
        if name not in budget:
            differences.append(f"{name}: no budget; run `{REWRITE}`")
        elif cost != budget[name]:
            was, now = asdict(budget[name]), asdict(cost)
            moved = ", ".join(f"{k} {was[k]} -> {now[k]}" for k in was if was[k] != now[k])
            differences.append(f"{name}: {moved}; if this is intended, run `{REWRITE}`")
    return differences


def measured(work: list[tuple[str, int]], jobs: int) -> Iterator[Row]:
    """The rows of entries by name and architecture. Processes are spawned, because a fork would copy threads."""
    if jobs == 1:
        for name, capability in work:
            yield from _rows_by_name(name, capability)
    else:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            for done in pool.map(_rows_by_name, *zip(*work, strict=True)):
                yield from done


def _rows_by_name(name: str, capability: int) -> list[Row]:
    return rows(next(e for e in everything() if e.name == name), capability)


def line(row: Row, width: int) -> str:
    """A row of the table, under `head`."""
    numbers = (f"{value:{len(column)}}" for column, value in asdict(row.cost).items())
    return "  ".join([f"{row.name:{width}}", *numbers, *row.faults])


def head(width: int) -> str:
    return "  ".join([" " * width, *Cost.__dataclass_fields__])


def main(
    write: Annotated[bool, typer.Option("--write", help="Compile what changed, and write its budgets again.")] = False,
    only_stale: Annotated[
        bool, typer.Option("--stale", help="Compile nothing: name the budgets of launches that changed.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Only the fixed part that the tests compile.")] = False,
    only: Annotated[str, typer.Option(help="Only entries with this in their names.")] = "",
    sm: Annotated[list[int] | None, typer.Option(metavar="N ..", help="The architectures.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes at once.")] = 2,
) -> int:
    """Print the table and what is wrong; 1 if anything is."""
    if write and only_stale:
        raise OptionError("--write and --stale exclude each other; give one of them")
    architectures = sm or ARCHITECTURES
    held, budget = budgets()
    chosen = [e for e in everything() if only in e.name]
    work = [(e.name, c) for e in chosen for c in (e.quick if quick else e.on) if c in architectures]
    if not work:
        raise OptionError(f"no entry has {only!r} in its name")
    rows_now = {name: (launch, capability) for name, launch, capability in launched()}
    if only_stale or write:
        own = {f"{name} sm_{capability}" for name, capability in work}
        now = {name: told(*row) for name, row in rows_now.items() if entry_name(name) in own}
    if only_stale:
        wrong = [*stale(held, now), *(f"{name}: no budget; run `{REWRITE}`" for name in now if name not in budget)]
        print("\n".join(wrong) or f"{len(now)} budgets are of the current launches")
        return 1 if wrong else 0
    if write and held.triton == triton.__version__:
        changed = {entry_name(name) for name, launch in now.items() if held.launches.get(name) != launch}
        work = [(name, capability) for name, capability in work if f"{name} sm_{capability}" in changed]
    elif write and (only or quick):
        raise OptionError(f"{stale(held, {})[0]}, over everything")
    width = max(map(len, rows_now))
    print(head(width))
    found = []
    for row in measured(work, jobs) if work else ():
        found.append(row)
        print(line(row, width), flush=True)
    costs, made = {row.name: row.cost for row in found}, Made(triton.__version__, {row.name: row.launch for row in found})
    if write:
        known = (budget if held.triton == triton.__version__ else {}) | costs
        launches = held.launches | made.launches
        kept = {name: known[name] for name in rows_now if name in known}
        whole = not (only or quick) and {*architectures} == {*ARCHITECTURES}
        BUDGETS.write_text(budgets_text(Made(triton.__version__, launches, text() if whole else held.code), kept))
        held, budget = budgets()
    wrong = [f"{row.name}: {fault}" for row in found for fault in row.faults] + compare(costs, made, held, budget)
    gone = sorted(set(budget) - set(rows_now))
    wrong += [f"{name}: a budget for an entry that the catalogue does not have; run `{REWRITE}`" for name in gone]
    wrong += [f"{name}: no budget; run `{REWRITE}`" for name in sorted(set(rows_now) - set(budget) - set(costs))]
    wrong += idle(reasons(), budget)
    print(f"\n{len(found)} kernels compiled by triton {triton.__version__}, {len(wrong)} faults")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(run_command(main))
