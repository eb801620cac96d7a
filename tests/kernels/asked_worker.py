"""Where the loads of `delta_held` stand in its machine code for sm_90, with every tile that its launcher gives, as JSON.

Run by `test_delta_asked` in a process without the interpreter, over the kernel as it stands and with a fault.
"""

import json
import re
import sys
from types import ModuleType
from typing import Any

from perf_gates import ptx
from perf_gates.capture import build, launches_of
from perf_gates.catalogue import BF16, BOOL, DELTA, FP32, I32, meta
from perf_gates.compiled import disassembled
from ssmspec_kernels import delta_held
from ssmspec_kernels.delta_solved import scratch
from tests.kernels.mutants import mutated

G, H, K, V = DELTA["qwen3.5-4b"]
SIZES = [(64, 8), (4, 10), (16, 10), (64, 16)]
"""Rows and tokens: few and many heads, one product for queries and keys and two, runs of one, two and four tiles."""

HOISTED = ("            tiles, v_t = _load_tile(\n", "            tiles_next, v_next = _load_tile(\n")
"""A tile that is asked for and not taken, as if a program had only one: nothing is carried from turn to turn."""
UNORDERED = ("        tl.debug_barrier()  # ptxas would", "        # ptxas would")
"""Nothing keeps the tile in front of the rows of the window."""
REVERSED = (
    "(w * 16 + r * 2)[:, None] + tl.arange(0, 2)[None, :]",
    "(w * 16 + r * 2)[:, None] + (1 - tl.arange(0, 2))[None, :]",
)
"""Pairs of channels the other way round, which no lane loads at once."""


def held(module: ModuleType, b: int, t: int, write_state: bool, live: bool) -> dict[str, Any]:
    """`first`: loads in front of all barriers and stores to shared memory. `late`: those from the
    first barrier behind such a store to the last product. `widths`: bytes of the state that a lane loads at once."""
    given = meta(b, H, K, V, dtype=FP32), meta(b, t, G, K), meta(b, t, G, K), meta(b, t, H, V)
    which = meta(b, dtype=I32), meta(b, t, dtype=BOOL) if live else None
    solved = scratch(b, H, given[0].device)
    (launched,) = launches_of(lambda: module.launch_held(*given, *which, write_state, solved, meta(b, t, H, V, dtype=BF16)))
    built = build(launched, 90)
    ops = operations(disassembled(built.compiled.asm["cubin"]))
    waits = next(i for i, op in enumerate(ops) if op.startswith(("BAR", "STS")))
    stored = next(i for i, op in enumerate(ops) if op.startswith("STS"))
    shared = next(i for i, op in enumerate(ops) if op.startswith("BAR") and i > stored)
    last = max(i for i, op in enumerate(ops) if op.startswith(("HMMA", "HGMMA")))
    accesses = ptx.accesses(built.compiled.asm["ptx"], built.parameters)
    return {
        "name": f"{b} rows, {t} tokens{', written' if write_state else ''}{', marked' if live else ''}",
        "first": loads(ops[:waits]),
        "late": loads(ops[shared:last]),
        "widths": sorted({a.bytes for a in accesses if a.kind == "load" and "S" in a.owners}),
    }


def loads(ops: list[str]) -> int:
    return sum(op.startswith("LDG") for op in ops)


def operations(sass: str) -> list[str]:
    """The machine instructions of a disassembly, in order."""
    return re.findall(r"^\s+/\*[0-9a-f]{4,6}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", sass, re.M)


def overlapping(module: ModuleType) -> ModuleType:
    """The module with launches that are placed early, as on sm_90."""
    sys.modules[f"{module.__package__}.launch"].overlaps = lambda device: True  # type: ignore[attr-defined]
    return module


if __name__ == "__main__":
    overlapping(delta_held)
    sound = [held(delta_held, b, t, write, False) for b, t in SIZES for write in (True, False)]
    sound += [held(delta_held, 16, 13, False, True)]
    hoisted, unordered, reversed_ = (overlapping(mutated(delta_held, *fault)) for fault in (HOISTED, UNORDERED, REVERSED))
    planted = {
        "hoisted": [held(hoisted, 64, 5, write, False) for write in (True, False)],
        "unordered": [held(unordered, 64, 10, True, False)],
        "reversed": [held(reversed_, 64, 5, False, False)],
    }
    print(json.dumps({"sound": sound, **planted}))
