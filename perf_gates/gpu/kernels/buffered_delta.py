"""Buffered decoding of the delta rule over whole flush cycles, the cursors moving on the device.

A run is that of a model: layers that share their cursors, each with its own states and rings, one launch per layer and step,
one launch of the cursors for all layers of a model. All steps of a cycle are in one CUDA graph, and a replay returns the
cursors to their initial values, so that every flush is counted as often as it occurs. Rows are aligned (all flush in the same
step) or staggered (equally many in every step). Each layer has a separate output at each step of the cycle, with a flush and
without, which `perf_gates.gpu.output_guard` checks. Times are per launch of a layer, the cursors' launches left out of the
count but not of the time; ratios use the plain step of the same run.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from perf_gates.gpu.clock import copies_for, graph_us, is_compiling
from perf_gates.gpu.output_guard import Outputs, numbered, own_outputs
from perf_gates.static.shapes import BATCHES, DELTA

from .steps import Timing, bf16, kernel

LAYERS = 24
"""Layers of one model that share their cursors (Qwen3.5-4B)."""


@dataclass(frozen=True)
class Cycle:
    """Windows of `tokens` with `advanced` of them accepted in a ring of `capacity`; one token is standard decode."""

    tokens: int
    advanced: int
    capacity: int

    @property
    def held(self) -> list[int]:
        """The entries held before each step of the cycle."""
        if self.tokens == 1:
            return list(range(self.capacity))
        last = self.capacity - 2 * self.tokens
        return [n * self.advanced for n in range(1, last // self.advanced + 2)]


@dataclass
class Model:
    """States, rings and inputs of some layers; all with the same inputs."""

    states: torch.Tensor
    layers: list[Any]
    inputs: tuple[torch.Tensor, ...]
    slots: torch.Tensor


def rings(shape: str, batch: int, cycle: Cycle, u: torch.dtype, copies: int, staggered: bool) -> list[Any]:
    """One ring for each layer; the layers of a model share their cursors."""
    g, h, k, v = DELTA[shape]
    ring, L = kernel("delta_ring", "Ring"), cycle.capacity
    found: list[Any] = []
    cursors: tuple[torch.Tensor, ...] = ()
    for n in range(copies):
        if n % LAYERS == 0:
            phase = torch.arange(batch, device="cuda") * staggered % len(cycle.held)
            held = torch.tensor(cycle.held, device="cuda", dtype=torch.int32)[phase]
            cursors = torch.arange(batch, device="cuda", dtype=torch.int32) * 5 % L, held
        entries = torch.randn(batch, L, h, v, device="cuda").to(u), bf16(batch, L, g, k)
        found.append(ring(*entries, -0.1 * torch.rand(batch, L, h, device="cuda"), *cursors))
    return found


def model(shape: str, batch: int, cycle: Cycle, u: torch.dtype, copies: int, staggered: bool) -> Model:
    g, h, k, v = DELTA[shape]
    gates = -0.1 * torch.rand(batch, cycle.tokens, h, device="cuda"), torch.rand(batch, cycle.tokens, h, device="cuda")
    given = bf16(batch, cycle.tokens, g, k), bf16(batch, cycle.tokens, g, k), bf16(batch, cycle.tokens, h, v)
    slots = torch.randperm(batch, device="cuda").int()
    states = torch.randn(copies, batch, h, k, v, device="cuda")
    return Model(states, rings(shape, batch, cycle, u, copies, staggered), (*given, *gates), slots)


def outputs_of(m: Model, cycle: Cycle) -> Outputs:
    """One for each layer at each step of a cycle, in the order of the launches."""
    steps, layers = len(cycle.held), len(m.layers)
    return own_outputs(m.inputs[2], [f"step {at} of {steps}, layer {n}" for at in range(steps) for n in range(layers)])


def launches(m: Model, cycle: Cycle, outputs: Outputs, **tile: Any) -> Iterator[Callable[[], object]]:
    """All launches of one cycle, in order."""
    free = iter(outputs.values())
    batch, origin_of = len(m.slots), kernel("cursors", "commit_step" if cycle.tokens == 1 else "commit_window")
    step = kernel("delta_buffered_step" if cycle.tokens == 1 else "delta_buffered")
    took = torch.full((batch,), cycle.advanced, device="cuda", dtype=torch.int32)
    more: dict[str, Any] = {"rows": batch} if cycle.tokens == 1 else {"advanced": took, "window": cycle.tokens}
    for _ in cycle.held:
        for n, ring in enumerate(m.layers):
            out = next(free)
            yield lambda S=m.states[n], r=ring, o=out: step(S, r, *m.inputs, slots=m.slots, out=o, **tile)  # type: ignore[misc]
            if n % LAYERS == LAYERS - 1 or n == len(m.layers) - 1:
                yield lambda r=ring: origin_of(r.origin, r.held, capacity=cycle.capacity, slots=m.slots, **more)  # type: ignore[misc]


def cycle_us(shape: str, batch: int, cycle: Cycle, u: torch.dtype, staggered: bool, **tile: Any) -> float:
    """The time of one launch of a layer, averaged over the flush cycle.

    Raises: WrongOutputError; RuntimeError for a cycle that does not close.
    """
    m = model(shape, batch, cycle, u, copies_for(step_bytes(shape, batch) // 2), staggered)
    before = [ring.held.clone() for ring in m.layers]
    outputs = outputs_of(m, cycle)
    sequence = list(launches(m, cycle, outputs, **tile))
    us = graph_us(sequence, outputs, list(m.states), replays=7) * len(sequence) / (len(cycle.held) * len(m.layers))
    if not is_compiling() and not all(map(torch.equal, before, (ring.held for ring in m.layers))):
        raise RuntimeError("the cursors did not return to the start of the cycle; nothing is measured")
    return us


def step_bytes(shape: str, batch: int) -> int:
    g, h, k, v = DELTA[shape]
    return int(kernel("delta_scan", "traffic_bytes")(batch, 1, g, h, k, v))


def cycle_bytes(shape: str, batch: int, cycle: Cycle, u: int) -> float:
    """The mean of `traffic_bytes` over the cycle."""
    g, h, k, v = DELTA[shape]
    if cycle.tokens == 1:
        of = kernel("delta_buffered_step", "traffic_bytes")
        each = [of([n] * batch, g, h, k, v, capacity=cycle.capacity, u=u) for n in cycle.held]
    else:
        of, t = kernel("delta_buffered", "traffic_bytes"), cycle.tokens
        each = [of([n] * batch, t, g, h, k, v, capacity=cycle.capacity, window=t, u=u) for n in cycle.held]
    return sum(each) / len(each)


def plain_us(shape: str, batch: int, **tile: Any) -> float:
    """The plain step: one token, the state read and written."""
    g, h, k, v = DELTA[shape]
    states = torch.randn(copies_for(step_bytes(shape, batch)), batch, h, k, v, device="cuda")
    gates = -torch.rand(batch, 1, h, device="cuda"), torch.rand(batch, 1, h, device="cuda")
    given = (bf16(batch, 1, g, k), bf16(batch, 1, g, k), bf16(batch, 1, h, v), *gates)
    scan, slots = kernel("delta_scan"), torch.arange(batch, device="cuda", dtype=torch.int32)
    outputs = own_outputs(given[2], numbered(len(states)))
    each = zip(states, outputs.values(), strict=True)
    sequence = [lambda S=S, o=o: scan(S, *given, slots=slots, out=o, **tile) for S, o in each]
    return graph_us(sequence, outputs, list(states))


CYCLES = {
    "buffered L=16 output only": Cycle(1, 1, 16),
    "verify 6, 4 advanced, L=32": Cycle(6, 4, 32),
    "verify 6, 4 advanced, L=22": Cycle(6, 4, 22),
    "verify 6, 6 advanced, L=22": Cycle(6, 6, 22),
}


def timings(shape: str, batch: int) -> list[Timing]:
    """The plain step; every cycle with u in bf16, rows aligned and staggered, and with u in fp32, aligned."""
    found = [Timing(shape, "step", batch, plain_us(shape, batch), step_bytes(shape, batch))]
    for name, cycle in CYCLES.items():
        for u, staggered in ((torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, False)):
            if staggered and batch == 1:
                continue
            us = cycle_us(shape, batch, cycle, u, staggered)
            stored = "" if u == torch.bfloat16 else ", u fp32"
            label = f"{name}, {'staggered' if staggered else 'aligned'}{stored}"
            found.append(Timing(shape, label, batch, us, int(cycle_bytes(shape, batch, cycle, u.itemsize))))
            torch.cuda.empty_cache()
    return found


def cases() -> Iterator[tuple[str, int]]:
    """Models and batches, the largest first."""
    yield from ((shape, batch) for batch in reversed(BATCHES) for shape in DELTA)
