"""Survivors by which no machine code changes: they are no breaks.

    python -m tests.kernels.campaign.same breaks.jsonl

Of the launchers that use a survivor's file, the first kernels of `perf_gates.static.catalogue` that hold its line are
compiled for sm_90 as they stand and broken. Where all have the same instructions, the survivor's row is written again, with
`same`: how many kernels were compared. The compiler drops what nothing reads, casts to the type that is there, and what
another condition implies (trivial compiler equivalence: Papadakis, Jia, Harman and Le Traon, ICSE 2015). It judges no change
on the host, of a line that no entry compiles, or of a cast, which matters for types that no entry has. Each survivor needs
its argument all the same.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from perf_gates.static import catalogue
from perf_gates.static.capture import build
from perf_gates.static.compiled import launches_on
from perf_gates.static.same_code import KERNELS, of_tree
from tests.kernels.campaign.draw import Break, found
from tests.kernels.campaign.places import PACKAGE, Place, find, located
from tests.kernels.campaign.table import load
from tests.kernels.mutants import sources

HOPPER, MOST = 90, 4


def users(file: str) -> set[str]:
    """What is defined by a file of the package, and by all that imports it: its launchers are among it."""
    held = sources(PACKAGE)
    found = {name for name in held if name.rpartition(".")[2] == Path(file).stem}
    while more := {name for name, source in held.items() if source.imports & found} - found:
        found |= more
    return {defined for name in found for defined, *_ in held[name].spans}


def holding(place: Place) -> dict[str, str]:
    """The first kernels that hold the line of a place, `MOST` and those beside them, each with its entry's name."""
    kernels_held: dict[str, str] = {}
    launchers, at = users(place.file), f'/{place.file}":{place.line}:'
    entries = (entry for entry in catalogue.entries() if entry.kernel in launchers and HOPPER in entry.on)
    for entry in sorted(entries, key=lambda entry: HOPPER not in entry.quick):
        launches = enumerate(launches_on(entry, HOPPER))
        held = (i for i, launch in launches if at in build(launch, HOPPER).compiled.asm["source"])
        kernels_held |= {f"{entry.name} {i}": entry.name for i in held}
        if len(kernels_held) >= MOST:
            break
    return kernels_held


def same(made: Break) -> int:
    """How many kernels were compared and are the same; 0 where one is not, or none was compiled."""
    held = holding(made.place)
    if not held:
        return 0
    names = sorted({*held.values()})
    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder) / PACKAGE.name
        shutil.copytree(PACKAGE, broken, ignore=shutil.ignore_patterns("__pycache__"))
        located(broken, made.place.file).write_bytes(made.source(PACKAGE))
        before = of_tree(KERNELS, names, HOPPER, 1)
        try:
            after = of_tree(Path(folder), names, HOPPER, 1)
        except RuntimeError:  # it does not compile
            return 0
    return len(held) if all(name in after and before[name].code == after[name].code for name in held) else 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    settings = parser.parse_args()
    alive = (row for row in load(settings.results)[1] if row["result"] == "survived")
    rows: list[dict[str, Any]] = [row for row in alive if row["kind"] != "cast dropped"]
    made = found(find(PACKAGE.rglob("[!_]*.py"))[0], {row["name"] for row in rows})
    with settings.results.open("a") as file:
        for row in rows:
            count = same(made[row["name"]])
            said = f"{count} kernels are the same" if count else "differs, or is not compiled"
            print(f"{row['name'][:100]}: {said}", flush=True)
            if count:
                file.write(json.dumps({**row, "same": count}) + "\n")


if __name__ == "__main__":
    main()
