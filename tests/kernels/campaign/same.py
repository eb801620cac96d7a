"""Survivors by which no machine code changes: they are no breaks.

    python -m tests.kernels.campaign.same breaks.jsonl

Of the launchers that use a survivor's file, the first kernels of `perf_gates.catalogue` that hold its line are compiled for
sm_90 as they stand and broken. Where all have the same instructions, the survivor's row is written again, with `same`: how
many kernels were compared. The compiler drops what nothing reads, casts to the type that is there, and what another condition
implies (trivial compiler equivalence: Papadakis, Jia, Harman and Le Traon, ICSE 2015). It judges no change on the host, of a
line that no entry compiles, or of a cast, which matters for types that no entry has. Each survivor needs its argument all the
same.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from perf_gates.machine import modules
from tests.kernels.campaign.draw import Break
from tests.kernels.campaign.places import find
from tests.kernels.campaign.run import PACKAGE, ROOT
from tests.kernels.campaign.table import load

HOPPER, MOST = 90, 4
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?);")


def compiled(launchers: list[str], file: str, line: int) -> dict[str, str]:
    """A hash of the instructions of `MOST` kernels of these launchers that hold a line of a file, in this process."""
    from perf_gates import catalogue
    from perf_gates.capture import build, launches_of
    from perf_gates.compiled import disassembled

    found: dict[str, str] = {}
    entries = (entry for entry in catalogue.entries() if entry.kernel in launchers and HOPPER in entry.on)
    for entry in sorted(entries, key=lambda entry: HOPPER not in entry.quick):
        for k, launch in enumerate(launches_of(entry.call)):
            made = build(launch, HOPPER).compiled.asm
            if f'/{file}":{line}:' in made["source"]:
                text = repr(INSTRUCTION.findall(disassembled(made["cubin"])))
                found[f"{entry.name} {k}"] = hashlib.sha256(text.encode()).hexdigest()
        if len(found) >= MOST:
            break
    return found


def of_package(package: Path, launchers: list[str], file: str, line: int) -> dict[str, str]:
    """The same with another copy of the package, in a process of its own."""
    with tempfile.TemporaryDirectory() as cache:
        path = os.pathsep.join([str(package.parent), str(ROOT)])
        settings = {**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": cache}
        asked = [sys.executable, "-m", "tests.kernels.campaign.same", "--at", file, str(line), "--launchers", *launchers]
        said = subprocess.run(asked, cwd=cache, env=settings, capture_output=True, text=True)
    return dict(json.loads(said.stdout.splitlines()[-1])) if said.returncode == 0 else {}


def users(file: str, package: Path = PACKAGE) -> list[str]:
    """The modules that use a file of the package."""
    stem = Path(file).stem
    return sorted(f.stem for f in package.glob("*.py") if stem in modules(f.stem, folder=package))


def same(made: Break, package: Path = PACKAGE) -> int:
    """How many kernels were compared and are the same; 0 where one is not, or none was compiled."""
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder) / name / "ssmspec_kernels" for name in ("as_it_stands", "broken")]
        for copy in copies:
            shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copies[1] / made.place.file).write_bytes(made.source(package))
        place, launchers = made.place, users(made.place.file, package)
        stands, broken = (of_package(copy, launchers, place.file, place.line) for copy in copies)
    return len(stands) if stands == broken else 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("--launchers", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--at", nargs=2, help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.launchers:
        print(json.dumps(compiled(settings.launchers, settings.at[0], int(settings.at[1]))))
        return
    alive = (row for row in load(settings.results)[1] if row["result"] == "survived")
    rows: list[dict[str, Any]] = [row for row in alive if row["kind"] != "cast dropped"]
    made = {b.name: b for p in find(PACKAGE.glob("*.py"))[0] for text in p.breaks if (b := Break(p, text))}
    with ThreadPoolExecutor(os.cpu_count()) as pool, settings.results.open("a") as file:
        for row, count in zip(rows, pool.map(lambda row: same(made[row["name"]]), rows), strict=True):
            print(
                f"{row['name'][:100]}: {count} kernels are the same"
                if count
                else f"{row['name'][:100]}: differs, or is not compiled",
                flush=True,
            )
            if count:
                file.write(json.dumps({**row, "same": count}) + "\n")


if __name__ == "__main__":
    main()
