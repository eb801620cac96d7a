"""How the compiled scans lie when they sum the states of a channel: one token beside four, printed as JSON.

Run by `test_sum_layouts` in a process without the interpreter. In TTGIR a sum is a `tt.reduce` over a block whose layout says
which states a lane holds and over which lanes and warps the rest of a channel's states are spread: that is the order of the
sum. Warps with channels of their own have no say in it.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import torch

from perf_gates.static.capture import build, launches_of
from perf_gates.static.entry import meta
from ssmspec_kernels.selective.selective_scan import selective_scan
from ssmspec_kernels.ssd.ssd_scan import ssd_scan
from ssmspec_kernels.ssd.ssd_snapshots import ssd_snapshots

LAYOUT = re.compile(r"^(#\w+) = (#ttg\.\S+<.*>)$", re.MULTILINE)
SUM = re.compile(r'"tt\.reduce"\([^)]*\) <\{axis = (\d) : i32.*?\(tensor<([0-9x]*)xf32, ([^()]*)>\) ->', re.DOTALL)
WARPS = re.compile(r"warpsPerCTA = \[\d+, 1\]")


def sums(call: Callable[[], object]) -> list[str]:
    """Axis and layout of every sum of fp32 over more than one axis that a launcher's kernel has, each once."""
    text = build(launches_of(call)[0], 90).compiled.asm["ttgir"]
    layouts = dict(LAYOUT.findall(text))
    found = {
        f"{axis} {re.sub(r'#[a-z0-9]+', lambda name: layouts.get(name[0], name[0]), layout)}"
        for axis, shape, layout in SUM.findall(text)
        if "x" in shape
    }
    return sorted(WARPS.sub("channels apart", layout) for layout in found)


def ssd(kernel: Any, p: int, n: int, t: int, **given: Any) -> list[str]:
    fp32, x, B = torch.float32, meta(2, t, 2, p), meta(2, t, 1, n)
    args: tuple[Any, ...] = (meta(8, 2, p, n, dtype=fp32), x, meta(2, t, 2), meta(2, dtype=fp32), B, B)
    if kernel is ssd_snapshots:
        args += (meta(2, t, dtype=torch.int64),)
    return sums(lambda: kernel(*args, **given))


def selective(d: int, n: int, t: int, **given: Any) -> list[str]:
    S, A, x, B = meta(8, d, n, dtype=torch.float32), meta(d, n, dtype=torch.float32), meta(2, t, d), meta(2, t, n)
    return sums(lambda: selective_scan(S, x, x, A, B, B, **given))


PAIRS: dict[str, Callable[[int], list[str]]] = {
    "scan of 16 states": lambda t: ssd(ssd_scan, 64, 16, t, fused=False),
    "scan of 128 states": lambda t: ssd(ssd_scan, 64, 128, t, fused=False),
    "snapshots of 16 states": lambda t: ssd(ssd_snapshots, 20, 16, t),
    "Mamba-1, 16 states": lambda t: selective(5120, 16, t),
    "Mamba-1, few channels": lambda t: selective(8, 16, t),
    "Mamba-1, many states": lambda t: selective(3, 67, t),
    "planted: four channels": lambda t: ssd(ssd_scan, 64, 16, t, fused=False, block_p=4 if t == 1 else 16),
    "planted: a second warp": lambda t: selective(3, 67, t, num_warps=2 if t == 1 else 1),
}

if __name__ == "__main__":
    print(json.dumps({name: (of(1), of(4)) for name, of in PAIRS.items()}))
