"""Buffered decoding of SSD: standard decode and verification.

A measurement is a whole cycle of flushes in one CUDA graph: every layer of a model in turn, then one commit of the cursors
that they share, repeated until the cursors have their initial values. They move on the device, and the checkpoints with
them. The time of one layer's step includes its share of the commit; bytes are averages over the cycle. Rows flush in the same
step (aligned), or equally many in each step (staggered). Each layer has a separate output at each step of the
cycle, with a flush and without, which `perf_gates.gpu.output_guard` checks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import torch

from perf_gates.gpu.clock import copies_for, graph_us, is_compiling, layers_of
from perf_gates.gpu.kernels.steps import Timing, bf16, kernel, timed
from perf_gates.gpu.output_guard import own_outputs
from perf_gates.static.shapes import BATCHES, SSD
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer

LAYERS = {"mamba2-2.7b": 64, "nemotron-3-nano-4b": 21}


@dataclass(frozen=True)
class Plan:
    """Windows of `window` tokens over rings of `capacity`, `advanced` accepted of each; window 0: standard decode."""

    capacity: int
    window: int = 0
    advanced: int = 1
    staggered: bool = False
    output_only: bool = True

    @property
    def cycle(self) -> list[int]:
        """The entries of a ring at each step between two flushes."""
        if not self.window:
            return list(range(self.capacity))
        held = np.arange(self.advanced, self.capacity + 1, self.advanced)
        last = int(ReplayBuffer(self.capacity, self.window).due(held).argmax())
        return [int(h) for h in held[: last + 1]]

    @property
    def name(self) -> str:
        phases = "staggered" if self.staggered else "aligned"
        if not self.window:
            return f"buffered L={self.capacity} {'output only' if self.output_only else 'state and output'}, {phases}"
        return f"verify {self.window}, {self.advanced} advanced, L={self.capacity}, {phases}"


def plans() -> Iterator[Plan]:
    """The plans of the package's table."""
    yield Plan(16)
    yield Plan(16, staggered=True)
    yield Plan(16, output_only=False)
    for staggered in (False, True):
        yield Plan(32, 6, 4, staggered)
        yield Plan(22, 6, 4, staggered)
        yield Plan(22, 6, 6, staggered)


class Model:
    """The layers of a model over one pool of cursors, with enough groups of rows to exceed any cache."""

    def __init__(self, model: str, batch: int, capacity: int) -> None:
        self.sizes, self.batch, self.layers = SSD[model], batch, layers_of(LAYERS[model])
        h, p, n, g = self.sizes
        self.groups = ceil(copies_for(batch * h * p * n * 4) / self.layers)
        rows = self.groups * batch
        self.origin, self.held = (torch.zeros(rows, device="cuda", dtype=torch.int32) for _ in range(2))
        ring = kernel("ssd_ring", "Ring")
        self.pools = [
            (
                torch.randn(rows, h, p, n, device="cuda"),
                ring(
                    bf16(rows, capacity, h, p),
                    torch.rand(rows, capacity, h, device="cuda"),
                    bf16(rows, capacity, g, n),
                    self.origin,
                    self.held,
                ),
            )
            for _ in range(self.layers)
        ]
        self.A, self.D, self.bias = (
            -torch.rand(h, device="cuda"),
            torch.randn(h, device="cuda"),
            torch.randn(h, device="cuda"),
        )
        self.slots = [torch.arange(i * batch, (i + 1) * batch, device="cuda", dtype=torch.int32) for i in range(self.groups)]


def buffered(model: Model, plan: Plan) -> tuple[float, int]:
    """The time of one layer's step and its bytes, averaged over a cycle.

    Raises: WrongOutputError; RuntimeError for cursors that do not return to their initial values.
    """
    h, p, n, g = model.sizes
    batch, cycle, t = model.batch, plan.cycle, max(1, plan.window)
    x, dt, B, C = bf16(batch, t, h, p), bf16(batch, t, h), bf16(batch, t, g, n), bf16(batch, t, g, n)
    phases = [cycle[i % len(cycle) if plan.staggered else 0] for i in range(batch)]
    model.held.copy_(torch.tensor(phases * model.groups, dtype=torch.int32))
    launcher = kernel("ssd_buffered") if plan.window else kernel("ssd_buffered_step")
    route: dict[str, Any] = {} if plan.window else {"output_only": plan.output_only}
    advanced = torch.full((batch,), plan.advanced, device="cuda", dtype=torch.int32)

    def layer(S: torch.Tensor, ring: Any, slots: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
        return lambda: launcher(S, ring, x, dt, model.A, B, C, D=model.D, dt_bias=model.bias, slots=slots, out=y, **route)

    def commit(slots: torch.Tensor) -> Callable[[], object]:
        cursors, capacity = (model.origin, model.held), plan.capacity
        if plan.window:
            window = {"capacity": capacity, "window": plan.window, "slots": slots}
            return lambda: kernel("cursors", "commit_window")(*cursors, advanced, **window)
        return lambda: kernel("cursors", "commit_step")(*cursors, capacity=capacity, rows=batch, slots=slots)

    places = [(at, group, n) for at in range(len(cycle)) for group in range(model.groups) for n in range(model.layers)]
    outputs = own_outputs(x, [f"step {at} of {len(cycle)}, rows {group}, layer {n}" for at, group, n in places])
    free, sequence = iter(outputs.values()), list[Callable[[], object]]()
    for _ in cycle:
        for slots in model.slots:
            sequence += [*(layer(S, ring, slots, next(free)) for S, ring in model.pools), commit(slots)]
    us = graph_us(sequence, outputs, [S for S, _ in model.pools], replays=7)
    if not is_compiling() and model.held.tolist() != phases * model.groups:
        raise RuntimeError("the cursors did not return to the start of the cycle; nothing is measured")
    sizes: dict[str, Any] = {"capacity": plan.capacity}
    if plan.window:
        bytes_of = kernel("ssd_buffered", "traffic_bytes")
        bytes_ = bytes_of(cycle, t, h, p, n, g, window=plan.window, **sizes)
    else:
        bytes_ = kernel("ssd_buffered_step", "traffic_bytes")(cycle, h, p, n, g, **sizes)
    return us * (1 + 1 / model.layers), bytes_ * batch // len(cycle)


def timings(name: str, batch: int) -> list[Timing]:
    """The plain step, and every plan."""
    found = [Timing(name, "step", batch, *_plain(name, batch))]
    for capacity in sorted({plan.capacity for plan in plans()}):
        model = Model(name, batch, capacity)
        chosen = [plan for plan in plans() if plan.capacity == capacity and (batch > 1 or not plan.staggered)]
        found += [Timing(name, plan.name, batch, *buffered(model, plan)) for plan in chosen]
        del model
        torch.cuda.empty_cache()
    return found


def _plain(name: str, batch: int) -> tuple[float, int]:
    h, p, n, g = SSD[name]
    bytes_ = kernel("ssd_scan", "traffic_bytes")(batch, 1, h, p, n, g)
    pool = torch.randn(batch * copies_for(bytes_), h, p, n, device="cuda")
    A, D, bias = -torch.rand(h, device="cuda"), torch.randn(h, device="cuda"), torch.randn(h, device="cuda")
    x, dt, B, C = bf16(batch, 1, h, p), bf16(batch, 1, h), bf16(batch, 1, g, n), bf16(batch, 1, g, n)
    launch = lambda s, y: kernel("ssd_scan")(pool, x, dt, A, B, C, D=D, dt_bias=bias, slots=s, out=y)  # noqa: E731
    return timed(launch, batch, bytes_, x, pool), bytes_


def cases() -> Iterator[tuple[str, int]]:
    """Models and batches, the largest first."""
    yield from ((model, batch) for batch in reversed(BATCHES) for model in SSD)
