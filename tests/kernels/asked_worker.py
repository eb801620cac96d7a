"""Where the loads of `delta_apply` stand in its machine code for sm_90, with every tile that its launcher gives, as JSON.

Run by `test_delta_asked` in a process without the interpreter, over the kernel as it stands and with a fault.
"""

import json
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from perf_gates.digest.launches import disassembled
from perf_gates.static import ptx
from perf_gates.static.capture import build, launches_of
from perf_gates.static.entry import BF16, BOOL, FP32, I32, meta
from perf_gates.static.shapes import DELTA
from ssmspec_kernels.delta import delta_apply
from ssmspec_kernels.delta.delta_solve import scratch
from tests.kernels.mutants import mutated

G, H, K, V = DELTA["qwen3.5-4b"]
SIZES = [(64, 5), (64, 8), (4, 10), (16, 10), (64, 16)]
"""Rows and tokens: few and many heads, one product for queries and keys and two, runs of one and two tiles."""

HOISTED = ("            tiles, v_t = _load_tile(\n", "            tiles_next, v_next = _load_tile(\n")
"""A tile that is asked for and not taken, as if a program had only one: nothing is carried from turn to turn."""
UNORDERED = ("            tl.debug_barrier()\n", "            pass\n")
"""Nothing keeps the tile in front of the rows of the window."""
CRAMPED = ('return H200["delta_apply"]["registers"] if hopper', "return 96 if hopper")
"""So few registers that a tile does not fit beside what it is multiplied by."""
REVERSED = (
    "(w * 16 + r * 2)[:, None] + tl.arange(0, 2)[None, :]",
    "(w * 16 + r * 2)[:, None] + (1 - tl.arange(0, 2))[None, :]",
)
"""Pairs of channels the other way round, which no lane loads at once."""


def held(module: ModuleType, b: int, t: int, write_state: bool, live: bool) -> dict[str, Any]:
    """`first`: loads in front of all barriers and stores to shared memory. `late`: those from the
    first barrier behind such a store to the last product. `widths`: bytes of the state that a lane loads at once.
    `run`: tiles of a program. `limit`: the most registers that the launcher gives. `spilled`: stores for want of them."""
    given = meta(b, H, K, V, dtype=FP32), meta(b, t, G, K), meta(b, t, G, K), meta(b, t, H, V)
    which = meta(b, dtype=I32), meta(b, t, dtype=BOOL) if live else None
    solved = scratch(b, H, given[0].device)
    (launched,) = launches_of(lambda: module.launch_apply(*given, *which, write_state, solved, meta(b, t, H, V, dtype=BF16)))
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
        "run": launched.kwargs["RUN"],
        "limit": launched.kwargs["maxnreg"],
        "spilled": sum(op.startswith("STL") for op in ops),
    }


def loads(ops: list[str]) -> int:
    return sum(op.startswith("LDG") for op in ops)


def operations(sass: str) -> list[str]:
    """The machine instructions of a disassembly, in order."""
    return re.findall(r"^\s+/\*[0-9a-f]{4,6}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", sass, re.M)


def on_sm_90(module: ModuleType) -> ModuleType:
    """The module with launches as on sm_90: placed early, and with the registers that are given there."""
    package = module.__name__.partition(".")[0]
    sys.modules[f"{package}.launch"].overlaps = lambda device: True  # type: ignore[attr-defined]
    given, hopper = module.registers, SimpleNamespace(is_cuda=True, device=None)
    module.registers = lambda S, *sizes: given(hopper, *sizes)  # type: ignore[attr-defined]
    return module


if __name__ == "__main__":
    setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))  # noqa: B010
    on_sm_90(delta_apply)
    sound = [held(delta_apply, b, t, write, False) for b, t in SIZES for write in (True, False)]
    sound += [held(delta_apply, 16, 13, False, True)]
    faults = HOISTED, UNORDERED, CRAMPED, REVERSED
    hoisted, unordered, cramped, reversed_ = (on_sm_90(mutated(delta_apply, *fault)) for fault in faults)
    planted = {
        "hoisted": [held(hoisted, 64, 5, write, False) for write in (True, False)],
        "unordered": [held(unordered, 4, 10, True, False)],
        "cramped": [held(cramped, 64, 5, True, False)],
        "reversed": [held(reversed_, 64, 5, False, False)],
    }
    print(json.dumps({"sound": sound, **planted}))
