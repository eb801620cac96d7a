"""Time the recurrent kernels on a GPU: `python -m perf_gates.gpu.kernels --out perf_gates/results/kernels.json`.

Each launch runs inside a CUDA graph over distinct states; outputs are filled with NaN before and must be finite after. Times
are medians of one run; a ratio is taken against the plain step of the same run.
"""

import argparse
import importlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from perf_gates.clock import copies_for, copy_bytes_per_us, empty_launch_us, graph_us
from perf_gates.machine import fingerprint

BATCHES = (1, 4, 16, 64, 256)
SSD = {"mamba2-2.7b": (80, 64, 128, 1), "nemotron-3-nano-4b": (96, 80, 128, 8)}  # heads, channels, state, groups
DELTA = {"qwen3.5-4b": (16, 32, 128, 128)}  # key heads, value heads, key and value channels
LINEAR = {"in_proj": (2560, 10576), "out_proj": (5120, 2560)}


@dataclass(frozen=True)
class Timing:
    """One measurement. Units: microseconds, bytes; `of_copy` is bytes over time over the run's copy bandwidth."""

    model: str
    operation: str
    batch: int
    us: float
    bytes: int
    of_copy: float
    of_step: float | None


def kernel(name: str, function: str | None = None) -> Any:
    """A launcher of ours, by name."""
    return getattr(importlib.import_module(f"ssmspec_kernels.{name}"), function or name)


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda").bfloat16()


def ladder(nodes: int, batch: int) -> torch.Tensor:
    """The ancestors of a full binary tree of `nodes` nodes, for each row."""
    mask = torch.eye(nodes, dtype=torch.bool)
    for i in range(1, nodes):
        mask[i] |= mask[(i - 1) // 2]
    return mask.expand(batch, nodes, nodes).contiguous().cuda()


def timed(launch: Callable[[torch.Tensor], object], batch: int, bytes_: int, out: torch.Tensor) -> float:
    """The time of one launch over rotating slots; the outputs must have been written."""
    count = copies_for(bytes_)
    slots = [torch.arange(i * batch, (i + 1) * batch, device="cuda", dtype=torch.int32) for i in range(count)]
    out.fill_(float("nan"))
    launch(slots[0])
    torch.cuda.synchronize()
    if not bool(out.isfinite().all()):
        raise RuntimeError("an output was not written, or is not finite; nothing is timed")
    return graph_us([lambda s=s: launch(s) for s in slots])  # type: ignore[misc]


def ssd(model: str, batch: int) -> list[tuple[str, float, int]]:
    """Plain step, fused scans, windows without a state write, and trees."""
    h, p, n, g = SSD[model]
    scan, window, tree = kernel("ssd_scan"), kernel("ssd_window"), kernel("ssd_tree_scan")
    scan_bytes, tree_bytes = kernel("ssd_scan", "traffic_bytes"), kernel("ssd_tree_scan", "traffic_bytes")
    pool = torch.randn(batch * copies_for(scan_bytes(batch, 1, h, p, n, g)), h, p, n, device="cuda")
    A, D, bias = -torch.rand(h, device="cuda"), torch.randn(h, device="cuda"), torch.randn(h, device="cuda")

    def run(name: str, launcher: Any, t: int, bytes_: int, ancestors: torch.Tensor | None = None, **rest: Any) -> None:
        x, dt, B, C = bf16(batch, t, h, p), bf16(batch, t, h), bf16(batch, t, g, n), bf16(batch, t, g, n)
        mask = () if ancestors is None else (ancestors,)
        out = torch.empty_like(x)
        launch = lambda s: launcher(pool, x, dt, A, B, C, *mask, D=D, dt_bias=bias, slots=s, out=out, **rest)  # noqa: E731
        found.append((name, timed(launch, batch, bytes_, out), bytes_))

    found: list[tuple[str, float, int]] = []
    run("step", scan, 1, scan_bytes(batch, 1, h, p, n, g))
    for t in (5, 10):
        bytes_ = scan_bytes(batch, t, h, p, n, g)
        run(f"scan of {t}, in registers", scan, t, bytes_)
        run(f"scan of {t}, by products", window, t, bytes_)
    run("window of 5, no write", window, 5, scan_bytes(batch, 5, h, p, n, g, write_state=False), write_state=False)
    for nodes in (13, 15, 63):
        run(f"tree of {nodes}", tree, nodes, tree_bytes(batch, nodes, h, p, n, g), ladder(nodes, batch))
    return found


def delta(model: str, batch: int) -> list[tuple[str, float, int]]:
    """Plain step, fused scans in registers, and a window by the triangular solve."""
    g, h, k, v = DELTA[model]
    scan, solve, bytes_of = kernel("delta_scan"), kernel("delta_chunked"), kernel("delta_scan", "traffic_bytes")
    pool = torch.randn(batch * copies_for(bytes_of(batch, 1, g, h, k, v)), h, k, v, device="cuda")

    def run(name: str, launcher: Any, t: int, bytes_: int, **rest: Any) -> None:
        q, key, value = bf16(batch, t, g, k), bf16(batch, t, g, k), bf16(batch, t, h, v)
        gate, beta = -torch.rand(batch, t, h, device="cuda"), torch.rand(batch, t, h, device="cuda")
        out = torch.empty_like(value)
        launch = lambda s: launcher(pool, q, key, value, gate, beta, slots=s, out=out, **rest)  # noqa: E731
        found.append((name, timed(launch, batch, bytes_, out), bytes_))

    found: list[tuple[str, float, int]] = []
    run("step", scan, 1, bytes_of(batch, 1, g, h, k, v))
    for t in (5, 10):
        run(f"scan of {t}, in registers", scan, t, bytes_of(batch, t, g, h, k, v))
        run(f"scan of {t}, by products", solve, t, bytes_of(batch, t, g, h, k, v))
    run("window of 5, no write", solve, 5, bytes_of(batch, 5, g, h, k, v, write_state=False), write_state=False)
    return found


def linear(name: str, rows: int) -> list[tuple[str, float, int]]:
    """The weights of one projection of Mamba2-2.7B, for a few rows; cuBLAS beside it."""
    k, o = LINEAR[name]
    launcher, bytes_ = kernel("linear_rows"), kernel("linear_rows", "traffic_bytes")(rows, k, o)
    weights = [(torch.randn(o, k, device="cuda") / k**0.5).bfloat16() for _ in range(copies_for(bytes_))]
    x, out = bf16(rows, k), torch.full((rows, o), float("nan"), device="cuda").bfloat16()
    launcher(x, weights[0], out=out)
    if not bool(out.isfinite().all()):
        raise RuntimeError("an output was not written, or is not finite; nothing is timed")
    ours = graph_us([lambda W=W: launcher(x, W, out=out) for W in weights])  # type: ignore[misc]
    theirs = graph_us([lambda W=W: torch.nn.functional.linear(x, W) for W in weights])  # type: ignore[misc]
    return [(f"linear_rows, {rows} rows", ours, bytes_), (f"cuBLAS, {rows} rows", theirs, bytes_)]


def measure(batches: tuple[int, ...]) -> dict[str, Any]:
    copy = copy_bytes_per_us()
    timings: list[Timing] = []

    def add(model: str, batch: int, found: list[tuple[str, float, int]]) -> None:
        step = next((us for name, us, _ in found if name == "step"), None)
        for name, us, bytes_ in found:
            ratio = None if step is None else us / step
            timings.append(Timing(model, name, batch, us, bytes_, bytes_ / us / copy, ratio))
            of_step = "" if ratio is None else f"{ratio:6.2f} steps"
            print(f"{model:20s} {batch:4d} {name:28s} {us:9.2f} us {bytes_ / us / copy:6.2f} of copy {of_step}", flush=True)

    for batch in batches:
        for model in SSD:
            add(model, batch, ssd(model, batch))
        for model in DELTA:
            add(model, batch, delta(model, batch))
    for name in LINEAR:
        for rows in (1, 6, 16, 32):
            add(f"mamba2-2.7b {name}", rows, linear(name, rows))
    head = fingerprint() | {"copy_bytes_per_us": copy, "empty_launch_us": empty_launch_us()}
    return {"machine": head, "timings": [asdict(t) for t in timings]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", type=int, nargs="*", default=list(BATCHES))
    arguments = parser.parse_args()
    arguments.out.write_text(json.dumps(measure(tuple(arguments.batches)), indent=1) + "\n")


if __name__ == "__main__":
    main()
