"""Kernels at the windows, rings and batches of ReplaySSM's figures, with the plain step of the same part.

Standard decode with rings of 4 to 32 tokens, and for 1 to 512 rows; verification of 2 to 8 tokens with half of the drafts
accepted, in rings of 16 tokens and the window; the state after every token, the paper's baseline.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from perf_gates.gpu.clock import copies_for, graph_us
from perf_gates.gpu.output_guard import numbered, own_outputs
from perf_gates.static.shapes import DELTA, SSD

from . import buffered, buffered_delta
from .steps import Timing, bf16, kernel

MODELS = (*SSD, *DELTA)
WINDOWS = (2, 4, 6, 8)
RINGS, ROWS = (4, 8, 32), (8, 32, 128, 512)


def ring(model: str, batch: int, window: int, capacity: int) -> list[Timing]:
    """A whole flush cycle of verification; a window of 0 is standard decode."""
    taken = window // 2 + 1
    plan = buffered.Plan(capacity, window, taken if window else 1)
    if model in SSD:
        return [Timing(model, plan.name, batch, *buffered.buffered(buffered.Model(model, batch, capacity), plan))]
    cycle = buffered_delta.Cycle(max(1, window), plan.advanced, capacity)
    us = buffered_delta.cycle_us(model, batch, cycle, torch.bfloat16, False)
    return [Timing(model, plan.name, batch, us, int(buffered_delta.cycle_bytes(model, batch, cycle, 2)))]


def step(model: str, batch: int, *_: int) -> list[Timing]:
    """The plain step."""
    if model in SSD:
        return [Timing(model, "step", batch, *buffered._plain(model, batch))]
    return [Timing(model, "step", batch, buffered_delta.plain_us(model, batch), buffered_delta.step_bytes(model, batch))]


def snapshots(model: str, batch: int, t: int, _: int) -> list[Timing]:
    """A window with the state after every token, each in its own slot.

    Raises: WrongOutputError.
    """
    sizes, state = (DELTA[model], DELTA[model][1:]) if model in DELTA else (SSD[model], SSD[model][:3])
    module = "delta_snapshots" if model in DELTA else "ssd_snapshots"
    bytes_ = int(kernel(module, "traffic_bytes")(batch, t, *sizes))
    copies = copies_for(bytes_, least=2)
    pool = torch.randn(copies * batch * (1 + t), *state, device="cuda")
    slots = torch.arange(len(pool), device="cuda", dtype=torch.int32).view(copies, batch, 1 + t)
    first, places = slots[..., 0].contiguous(), slots[..., 1:].contiguous()
    args, like, named = _window(model, batch, t)
    outputs = own_outputs(like, numbered(copies))

    def launch(i: int, out: torch.Tensor) -> None:
        kernel(module)(pool, *args, places[i], slots=first[i], out=out, **named)

    each = enumerate(outputs.values())
    us = graph_us([lambda i=i, y=y: launch(i, y) for i, y in each], outputs, [pool], replays=9)  # type: ignore[misc]
    return [Timing(model, f"snapshots of {t}", batch, us, bytes_)]


def chunks(model: str, batch: int, t: int, _: int) -> list[Timing]:
    """Windows of t tokens by the prefill kernel, the baseline of the fused scan in Snakes and Ladders' table 1."""
    (h, p, n, g), bytes_of = SSD[model], kernel("ssd_scan", "traffic_bytes")
    bytes_ = int(bytes_of(batch, t, h, p, n, g))
    copies = copies_for(bytes_)
    pool = torch.randn(copies * batch, h, p, n, device="cuda")
    given, like, named = _window(model, batch, t)
    x, dt, A, B, C = (u.flatten(0, 1) if u.dim() > 1 else u for u in given)
    bounds = t * torch.arange(batch + 1, device="cuda", dtype=torch.int32)
    slots = torch.arange(copies * batch, device="cuda", dtype=torch.int32).view(copies, batch)
    outputs = own_outputs(like.flatten(0, 1), numbered(copies))

    def launch(i: int, out: torch.Tensor) -> None:
        kernel("ssd_chunk_scan")(pool, x, dt, A, B, C, bounds, slots=slots[i], out=out, **named)

    each = enumerate(outputs.values())
    us = graph_us([lambda i=i, y=y: launch(i, y) for i, y in each], outputs, [pool], replays=9)  # type: ignore[misc]
    return [Timing(model, f"chunk scan of {t}", batch, us, bytes_)]


def _window(model: str, batch: int, t: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor, dict[str, Any]]:
    """The inputs of a window, a tensor in the shape of its outputs, and the other arguments."""
    if model in DELTA:
        g, h, k, v = DELTA[model]
        gates = -torch.rand(batch, t, h, device="cuda"), torch.rand(batch, t, h, device="cuda")
        given = bf16(batch, t, g, k), bf16(batch, t, g, k), bf16(batch, t, h, v), *gates
        return given, given[2], {}
    h, p, n, g = SSD[model]
    given = bf16(batch, t, h, p), bf16(batch, t, h), -torch.rand(h, device="cuda"), bf16(batch, t, g, n), bf16(batch, t, g, n)
    return given, given[0], {"D": torch.randn(h, device="cuda"), "dt_bias": torch.randn(h, device="cuda")}


def cases() -> Iterator[tuple[str, str, int, int, int]]:
    """Names, models, batches, windows and capacities; those that most gates read come first."""
    for model in MODELS:
        for batch in (64, 256):
            yield "step", model, batch, 0, 0
            yield from (("ring", model, batch, t, 16 + t) for t in WINDOWS)
            if model != "nemotron-3-nano-4b":
                yield from (("snapshots", model, batch, t, 0) for t in WINDOWS)
        yield from (("ring", model, 256, 0, capacity) for capacity in RINGS)
    yield from (("chunks", "mamba2-2.7b", batch, t, 0) for batch in (1, 4, 16) for t in (5, 10))
    for batch in ROWS:
        yield from ((what, model, batch, 0, 16) for model in MODELS for what in ("step", "ring"))


def timings(what: str, model: str, batch: int, window: int, capacity: int) -> list[Timing]:
    kinds: dict[str, Callable[..., list[Timing]]] = {"step": step, "ring": ring, "snapshots": snapshots, "chunks": chunks}
    return kinds[what](model, batch, window, capacity)
