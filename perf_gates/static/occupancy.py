"""How many warps of each kernel fit an SM: `python -m perf_gates.static.occupancy`, anywhere, from `compiled`'s budgets.

    blocks = min(registers / a block's, shared memory / a block's, warps / a block's, 32)    (1)
    warps resident = blocks x warps of a block                                                (2)

Registers of a warp are allocated in steps of 256, shared memory with 1 KiB of the system's for each block. The limits are in
`occupancy.toml`; a figure that changes in either direction fails until `--write` updates them.
"""

import sys
import tomllib
from pathlib import Path
from typing import Annotated

import typer

from conformance.main import run_command

from .compiled import Cost, budgets, launched

FLOORS = Path(__file__).parent.parent / "occupancy.toml"
REWRITE = "python -m perf_gates.static.occupancy --write"
REGISTERS, WARPS, BLOCKS, STEP = 65536, 64, 32, 256
SHARED = {80: 164 * 1024, 90: 228 * 1024, 100: 228 * 1024}
"""Bytes of shared memory of an SM: CUDA C++ Programming Guide, technical specifications by compute capability."""
RESERVED = 1024
DEFAULT_WARPS = 4
"""Triton's default, if a launch gives no number."""


def resident(cost: Cost, warps: int, capability: int) -> int:
    """(1) (2): the warps of a kernel that an SM holds at once."""
    by_registers = REGISTERS // (warps * -(-cost.registers * 32 // STEP) * STEP)
    by_shared = SHARED[capability] // (cost.shared + RESERVED)
    return min(by_registers, by_shared, WARPS // warps, BLOCKS) * warps


def found() -> dict[str, int]:
    """The warps that are resident, by row. Raises: KeyError for a kernel without a budget."""
    _, costs = budgets()
    return {
        name: resident(costs[name], int(launch.kwargs.get("num_warps", DEFAULT_WARPS)), capability)
        for name, launch, capability in launched()
    }


def floors() -> dict[str, int]:
    return {name: int(warps) for name, warps in tomllib.loads(FLOORS.read_text())["warps"].items()} if FLOORS.exists() else {}


def compare(now: dict[str, int], was: dict[str, int]) -> list[str]:
    """What changed, in either direction, and what was added or removed."""
    moved = [f"{name}: {was[name]} -> {now[name]} warps an SM" for name in now if name in was and now[name] != was[name]]
    came = [f"{name}: no limit" for name in now if name not in was]
    gone = [f"{name}: a limit for an entry that is not launched" for name in was if name not in now]
    return [f"{line}; if this is intended, run `{REWRITE}`" for line in (*moved, *came, *gone)]


def main(write: Annotated[bool, typer.Option("--write", help="Write the limits again.")] = False) -> int:
    now = found()
    if write:
        rows = "".join(f'"{name}" = {warps}\n' for name, warps in now.items())
        FLOORS.write_text(f"# Warps of {WARPS} that an SM holds of each kernel. Written by `{REWRITE}`.\n[warps]\n{rows}")
    wrong = compare(now, floors())
    print(
        "\n".join(wrong) or f"{len(now)} kernels hold as many warps as they did, {min(now.values())} to {max(now.values())}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(run_command(main))
