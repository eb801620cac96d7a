"""A kernel that keeps its state, and the same kernel with a fault that only its compiled form shows: judged, printed as JSON.

Run by `test_compiled` in a process without the interpreter.
"""

import json

import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from perf_gates.static import catalogue
from perf_gates.static.compiled import launches_on, rows
from perf_gates.static.entry import Entry, meta
from perf_gates.static.kernel_modules import homes, kernel_module


@triton.jit
def _sum_kernel(S, y, slots, rows, OFFSET: tl.constexpr, WRITE: tl.constexpr, P: tl.constexpr, N: tl.constexpr):
    b = tl.load(slots + tl.program_id(0)).to(tl.int64)
    p, n = tl.arange(0, P), tl.arange(0, N)
    if b >= 0:
        at = S + b * P * N + p[:, None] * N + n[None, :] + OFFSET
        state = tl.load(at)
        for i in range(rows):
            state = state * tl.load(y + i * P + p)[:, None] + 1.0
        if WRITE:
            tl.store(at, state)
        tl.store(y + rows * P + p, tl.sum(state, axis=1))


def planted(name: str, *, write: bool = False, offset: int = 0, warps: int = 4) -> Entry:
    """A verification: it may store y and nothing else, and reads S by 16 bytes."""

    def call() -> None:
        S, y, slots = (meta(*shape, dtype=kind) for shape, kind in SHAPES)
        _sum_kernel[(4,)](S, y, slots, y.shape[0] - 1, OFFSET=offset, WRITE=write, P=64, N=128, num_warps=warps)

    return Entry("planted", name, "4x64x128", call, frozenset({"y"}), frozenset({"S"}))


SHAPES = (((4, 64, 128), torch.float32), ((9, 64), torch.float32), ((4,), torch.int32))


def uncovered() -> list[str]:
    """The kernels of the package that no entry of the catalogue launches."""
    held = set()
    for name in homes():
        found = vars(kernel_module(name)).values()
        held |= {f.__name__ for f in found if isinstance(f, JITFunction) and f.__name__.endswith("_kernel")}
    entries = ((entry, capability) for entry in catalogue.entries() for capability in entry.on)
    return sorted(held - {launch.name for entry, capability in entries for launch in launches_on(entry, capability)})


if __name__ == "__main__":
    entries = [
        planted("sound"),
        planted("a verification that stores the state", write=True),
        planted("a state read 4 bytes at a time", offset=1),
        planted("a tile that no register file holds", warps=1),
    ]
    judged = {e.variant: [fault for row in rows(e, 90) for fault in row.faults] for e in entries}
    print(json.dumps({"judged": judged, "uncovered": uncovered()}))
