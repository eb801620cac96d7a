"""Steps of the engine at the dims of the papers, with random weights, as the papers' tables need them.

The steps that gates read are timed, under the gates' names (`named`), by the clock of the other parts: with the noise, the
processors' clock, the peak of memory, and the least bytes and products. Steps are ordered by model, so
that only one model's weights are in memory at a time; within a model plain steps come first.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from perf_gates.gpu.clock import event_us, is_compiling, known_median, repeated
from perf_gates.verdicts import gates

from ..kernels.steps import Timing
from . import peer_models
from .engines import built, engine, keep, model_of, operations_of, stepping, work_of
from .named import THEIRS, Step, named
from .work import Work

PART = "bench"
WARM, LEAST, MOST, SECONDS = 3, 11, 41, 0.6
"""Replays: for warm-up, least, most; and the time after which no further one starts."""
LAUNCHED: dict[str, Any] = {"most": 400, "seconds": 25.0, "pause": 0.0}
"""The same for a step that the host launches: its time varies with the host, and the GPU rests between its launches."""
ENOUGH = 0.002
"""The relative error at which a median is known well enough."""
PAUSE = 2.0
"""After each replay the GPU rests for this many times its length: its power limit slows down runs without a rest."""
FIRST = ("mamba2-2.7b", "mamba-in-llama-8b", "nemotron-3-nano-4b", "qwen3.5-4b", "pythia-6.9b", "mistral-7b")


Times = Callable[[Callable[[], object]], list[float]]


@dataclass(frozen=True)
class StepTiming(Timing):
    """A step, the most memory that it took, and the bytes of weights among its bytes. Units: microseconds, bytes,
    operations."""

    memory: int = 0
    weights: int = 0
    products: int = 0


def asked() -> set[tuple[str, str, int]]:
    """The steps that some gate reads, by model, operation and batch."""
    places = [place for table in gates.load().tables for cell in table.cells for place in (*cell.over, *cell.under)]
    return {(place.shape, place.operation, place.batch) for place in places if place.part in (PART, "floor")}


def steps() -> list[Step]:
    """The steps that gates read. Raises: GateError for a name that is not a step's."""
    found = []
    for place in asked():
        step = named(*place)
        if step is None:
            raise gates.GateError(f"{PART}: no step is called {place[1]!r}; see perf_gates/gpu/engine/named.py")
        found.append(step)
    return sorted(found, key=order)


def order(step: Step) -> tuple[object, ...]:
    """The steps that most gates read first, plain steps before all others of their model."""
    model = FIRST.index(step.model) if step.model in FIRST else len(FIRST)
    return model, step.model, step.method != "plain", not step.shape, step.batch, step.operation


def cases() -> Iterator[tuple[Step]]:
    yield from ((step,) for step in steps())


@torch.no_grad()
def timings(step: Step, device: str = "cuda", times_us: Times | None = None) -> list[Timing]:
    """The step as it runs: a graph, replayed. For compilation it runs once, launch by launch."""
    keep(step, device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    if step.method == THEIRS:
        if is_compiling():
            return []
        least = work_of(step, model_of(step.model, device), device)
        return [timing(step, peer_models.stepping(step, device), least, device, times_us or partial(events_us, **LAUNCHED))]
    recorder = engine("engine.graphs", "CUDARecorder")() if device == "cuda" and not is_compiling() else None
    made = built(step, device, operations_of(step, device), recorder)
    run = stepping(step, made, device)
    if is_compiling():
        run()
        return []
    return [timing(step, run, work_of(step, made.model, device), device, times_us)]


def timing(step: Step, run: Callable[[], object], least: Work, device: str, times_us: Times | None) -> StepTiming:
    """The median time of a step, with the most memory since it was built."""
    times = (times_us or events_us)(run)
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    sizes = least.weights + least.moved, memory, least.weights, least.products
    return StepTiming(step.model, step.operation, step.batch // step.leaves, known_median(times), *sizes)


def events_us(step: Callable[[], object], most: int = MOST, seconds: float = SECONDS, pause: float = PAUSE) -> list[float]:
    """Replays, each between two events, until their median is known well enough."""
    for _ in range(WARM):
        step()
    return repeated(lambda: event_us(step, pause), LEAST, most, ENOUGH, seconds)
