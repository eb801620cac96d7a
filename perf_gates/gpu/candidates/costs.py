"""What candidates cost beside the current kernel, without a GPU: `python -m perf_gates.gpu.candidates.costs --write`.

Each side of the pairs for 1 and 4 rows is compiled for sm_90, and its registers, spills, shared memory, instructions,
barriers, shuffles, bytes and resident warps are written into `perf_gates/candidates.json`, under the version of Triton;
figures of another version stay. `waves` is how often an H200 is filled by the programs of a launch.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton

from perf_gates.gpu.clock import compiling
from perf_gates.static import compiled, ptx
from perf_gates.static.capture import Launch, launches_of
from perf_gates.static.occupancy import DEFAULT_WARPS, resident
from perf_gates.static.on_device import on_device

from .pairs import Pair, pairs

FILE = Path(__file__).parents[2] / "candidates.json"
H200, SMS, FEW = 90, 132, 4


def launches(pair: Pair) -> Iterator[tuple[str, Launch]]:
    """What each side of a pair launches on an H200."""
    for i, name in enumerate(("candidate", "current")):

        def call(i: int = i) -> None:
            side = pair.sides(2)[i]
            side.launch(torch.arange(pair.batch, device="cuda", dtype=torch.int32), torch.empty_like(side.like))

        with on_device(H200), compiling():
            found = launches_of(call)
        yield from ((name, launch) for launch in found)


def cost(launch: Launch) -> dict[str, Any]:
    """The figures of a launch, compiled afresh."""
    built, log = compiled._compiled(launch, H200)
    sass = ptx.histogram(compiled.disassembled(built.compiled.asm["cubin"]))
    made, warps = compiled._cost(built, log, sass), int(launch.kwargs.get("num_warps", DEFAULT_WARPS))
    programs, held = 1, resident(made, warps, H200)
    for size in launch.grid:
        programs *= size
    counted = {name: sum(n for op, n in sass.items() if op.split(".")[0] == name) for name in ("BAR", "SHFL", "HMMA")}
    return {
        "registers": made.registers, "spills": made.spills, "shared": made.shared, "instructions": sum(sass.values()),
        "barriers": counted["BAR"], "shuffles": counted["SHFL"], "products": counted["HMMA"], "programs": programs,
        "warps": warps, "resident_warps": held, "waves": round(programs * warps / (held * SMS), 2),
    }  # fmt: skip


def rows(like: str = "") -> dict[str, Any]:
    """By pair, side and launch."""
    found: dict[str, Any] = {}
    for pair in pairs():
        if pair.batch <= FEW and like in str(pair):
            own: dict[str, Any] = {"bytes": pair.bytes, "candidate": {}, "current": {}}
            for i, (side, launch) in enumerate(launches(pair)):
                own[side][f"{i}:{launch.name}"] = cost(launch)
            found[str(pair)] = own
            print(pair, json.dumps(own), flush=True)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perf_gates.gpu.candidates.costs", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    parser.add_argument("--only", default="", metavar="TEXT", help="only pairs with this in their name")
    options = parser.parse_args(argv)
    found = rows(options.only)
    if options.write:
        held = json.loads(FILE.read_text()) if FILE.exists() else {}
        version = triton.__version__
        held[version] = held.get(version, {}) | found
        lines = ",\n".join(
            f' "{v}": {{\n' + ",\n".join(f"  {json.dumps(k)}: {json.dumps(row)}" for k, row in sorted(each.items())) + "\n }"
            for v, each in sorted(held.items())
        )
        FILE.write_text(f"{{\n{lines}\n}}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
