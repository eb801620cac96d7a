"""Plain steps, fused scans, windows without a write, and trees, of SSD and of the delta rule.

Each launch runs inside a CUDA graph with its own states and output, which `perf_gates.gpu.output_guard` checks after
the last timed replay. Times are medians of one run.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from perf_gates.gpu.clock import copies_for, graph_us
from perf_gates.gpu.output_guard import numbered, own_outputs
from perf_gates.static.kernel_modules import kernel_module
from perf_gates.static.shapes import BATCHES, DELTA, SSD

SCANS, WINDOW, TREES = (5, 10), 5, (13, 15, 63)


@dataclass(frozen=True)
class Timing:
    """One measurement; for `linear_rows` the batch is the number of rows. Units: microseconds, bytes (0: not counted)."""

    model: str
    operation: str
    batch: int
    us: float
    bytes: int = 0


def kernel(name: str, function: str | None = None) -> Any:
    """A launcher of ours, by name."""
    return getattr(kernel_module(name), function or name)


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda").bfloat16()


def ssd_inputs(batch: int, t: int, h: int, p: int, n: int, g: int) -> tuple[torch.Tensor, ...]:
    """Random x, dt, B, C, A and D, and the bias of dt."""
    x, dt, B, C = bf16(batch, t, h, p), bf16(batch, t, h), bf16(batch, t, g, n), bf16(batch, t, g, n)
    A, D, bias = -torch.rand(h, device="cuda"), torch.randn(h, device="cuda"), torch.randn(h, device="cuda")
    return x, dt, B, C, A, D, bias


def delta_inputs(batch: int, t: int, g: int, h: int, k: int, v: int) -> tuple[torch.Tensor, ...]:
    """Random queries, keys, values, gates and betas."""
    q, key, value = bf16(batch, t, g, k), bf16(batch, t, g, k), bf16(batch, t, h, v)
    gate, beta = -torch.rand(batch, t, h, device="cuda"), torch.rand(batch, t, h, device="cuda")
    return q, key, value, gate, beta


def ladder(nodes: int, batch: int) -> torch.Tensor:
    """The ancestors of a full binary tree of `nodes` nodes, for each row."""
    mask = torch.eye(nodes, dtype=torch.bool)
    for i in range(1, nodes):
        mask[i] |= mask[(i - 1) // 2]
    return mask.expand(batch, nodes, nodes).contiguous().cuda()


Rotating = Callable[[torch.Tensor, torch.Tensor], object]
"""A launch on slots, into an output."""


def timed(launch: Rotating, batch: int, bytes_: int, like: torch.Tensor, pool: torch.Tensor) -> float:
    """The time of one launch over rotating slots of the pool, with a separate output for each. Raises: WrongOutputError."""
    count = copies_for(bytes_)
    slots = [torch.arange(i * batch, (i + 1) * batch, device="cuda", dtype=torch.int32) for i in range(count)]
    outputs = own_outputs(like, numbered(count))
    each = zip(slots, outputs.values(), strict=True)
    return graph_us([lambda s=s, y=y: launch(s, y) for s, y in each], outputs, [pool])  # type: ignore[misc]


def ssd(model: str, batch: int, nodes: int) -> list[Timing]:
    """In registers (`ssd_scan`) and by products (`ssd_window`); or a tree (`ssd_tree_scan`)."""
    h, p, n, g = SSD[model]
    scan, window, tree = kernel("ssd_scan"), kernel("ssd_window"), kernel("ssd_tree_scan")
    scan_bytes, tree_bytes = kernel("ssd_scan", "traffic_bytes"), kernel("ssd_tree_scan", "traffic_bytes")
    fewest = scan_bytes(batch, 1, h, p, n, g, write_state=False)
    pool = torch.randn(batch * copies_for(fewest), h, p, n, device="cuda")
    A, D, bias = -torch.rand(h, device="cuda"), torch.randn(h, device="cuda"), torch.randn(h, device="cuda")

    def run(name: str, launcher: Any, t: int, bytes_: int, ancestors: torch.Tensor | None = None, **rest: Any) -> None:
        x, dt, B, C = bf16(batch, t, h, p), bf16(batch, t, h), bf16(batch, t, g, n), bf16(batch, t, g, n)
        mask = () if ancestors is None else (ancestors,)
        launch = lambda s, y: launcher(pool, x, dt, A, B, C, *mask, D=D, dt_bias=bias, slots=s, out=y, **rest)  # noqa: E731
        found.append(Timing(model, name, batch, timed(launch, batch, bytes_, x, pool), bytes_))

    found: list[Timing] = []
    if nodes:
        run(f"tree of {nodes}", tree, nodes, tree_bytes(batch, nodes, h, p, n, g), ladder(nodes, batch))
        return found
    run("step", scan, 1, scan_bytes(batch, 1, h, p, n, g))
    for t in SCANS:
        bytes_ = scan_bytes(batch, t, h, p, n, g)
        run(f"scan of {t}, in registers", scan, t, bytes_)
        run(f"scan of {t}, by products", window, t, bytes_)
    unwritten = scan_bytes(batch, WINDOW, h, p, n, g, write_state=False)
    run(f"window of {WINDOW}, in registers", scan, WINDOW, unwritten, write_state=False)
    run(f"window of {WINDOW}, by products", window, WINDOW, unwritten, write_state=False)
    return found


def delta(model: str, batch: int, nodes: int) -> list[Timing]:
    """In registers (`delta_scan`) and by the triangular solve (`delta_chunked`); or a tree (`delta_tree`)."""
    g, h, k, v = DELTA[model]
    scan, solve, bytes_of = kernel("delta_scan"), kernel("delta_chunked"), kernel("delta_scan", "traffic_bytes")
    tree, tree_bytes = kernel("delta_tree"), kernel("delta_tree", "traffic_bytes")
    fewest = bytes_of(batch, 1, g, h, k, v, write_state=False)
    pool = torch.randn(batch * copies_for(fewest), h, k, v, device="cuda")

    def run(name: str, launcher: Any, t: int, bytes_: int, ancestors: torch.Tensor | None = None, **rest: Any) -> None:
        q, key, value, gate, beta = delta_inputs(batch, t, g, h, k, v)
        mask = () if ancestors is None else (ancestors,)
        launch = lambda s, o: launcher(pool, q, key, value, gate, beta, *mask, slots=s, out=o, **rest)  # noqa: E731
        found.append(Timing(model, name, batch, timed(launch, batch, bytes_, value, pool), bytes_))

    found: list[Timing] = []
    if nodes:
        run(f"tree of {nodes}", tree, nodes, tree_bytes(batch, nodes, g, h, k, v), ladder(nodes, batch))
        return found
    run("step", scan, 1, bytes_of(batch, 1, g, h, k, v))
    for t in SCANS:
        run(f"scan of {t}, in registers", scan, t, bytes_of(batch, t, g, h, k, v))
        run(f"scan of {t}, by products", solve, t, bytes_of(batch, t, g, h, k, v))
    unwritten = bytes_of(batch, WINDOW, g, h, k, v, write_state=False)
    run(f"window of {WINDOW}, in registers", scan, WINDOW, unwritten, write_state=False)
    run(f"window of {WINDOW}, by products", solve, WINDOW, unwritten, write_state=False)
    return found


def cases() -> Iterator[tuple[str, int, int]]:
    """Models, batches, and the nodes of a tree; 0 means all chains."""
    yield from ((model, batch, nodes) for nodes in (0, *TREES) for batch in BATCHES for model in (*SSD, *DELTA))


def timings(model: str, batch: int, nodes: int) -> list[Timing]:
    return delta(model, batch, nodes) if model in DELTA else ssd(model, batch, nodes)
