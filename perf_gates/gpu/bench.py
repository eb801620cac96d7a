"""Steps of the engine at the dims of the papers, with random weights, as the papers' tables ask for them.

The models, the steps and what they are called are those of `ssmspec bench`; here they are timed by the clock of the other
parts, with their noise, the processors' clock, and the peak of memory, so that gates can read them. The name of a step is its
method, its window or tree, and its drafts: `replay, window of 7, 2 drafts`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from statistics import median
from typing import Any

import torch

from perf_gates import gates
from perf_gates.clock import noises, relative_error

from .steps import Timing

REPLAYS, WARM = 25, 3


@dataclass(frozen=True)
class StepTiming(Timing):
    """A step, and the most memory that it took. Units: microseconds, bytes."""

    memory: int = 0


def engine(module: str, name: str) -> Any:
    """A function of the engine, by name."""
    return getattr(import_module(f"ssmspec_fast.{module}"), name)


def operation(subject: Any) -> str:
    """What a step is called in `gates.toml`."""
    shape = f"tree of {len(subject.parents)}" if subject.parents else f"window of {subject.window}"
    emitted = f", {subject.advanced} emitted" if subject.advanced > 1 else ""
    return f"{subject.method}, {shape}{f', {subject.drafts} drafts' if subject.drafts > 1 else ''}{emitted}"


@lru_cache(maxsize=1)
def model_of(name: str, device: str) -> Any:
    """One model at a time: the one before makes room."""
    return engine("bench.models", "random_model")(name, torch.bfloat16 if device == "cuda" else torch.float32, device)


def asked() -> set[tuple[str, str, int]]:
    """The steps that some gate reads, by model, operation and batch."""
    places = [place for table in gates.load().tables for cell in table.cells for place in (*cell.over, *cell.under)]
    return {(place.shape, place.operation, place.batch) for place in places if place.part == "bench"}


def subjects() -> list[Any]:
    """What gates read and the engine has, model by model, plain steps first."""
    subject, trees, names = (engine("bench.subjects", name) for name in ("Subject", "tree_of", "METHODS"))
    known, found = engine("bench.models", "DIMS"), []
    for model, name, batch in asked():
        method, _, rest = name.partition(", ")
        kind, _, size = rest.partition(" of ")
        tokens, _, drafts = size.partition(", ")
        if model not in known or method not in names or kind not in ("window", "tree") or not tokens.isdigit():
            continue  # a step that needs a drafter or trained weights: its gate stays without a measurement, and says so
        rows = int(drafts.split()[0]) if drafts else 1
        parents = trees(int(tokens)) if kind == "tree" else None
        found.append(subject(model, method, int(tokens), batch, rows, parents))
    order = list(known)
    return sorted(found, key=lambda s: (order.index(s.model), s.method != "plain", s.method, s.batch, s.window, s.drafts))


def cases() -> Iterator[tuple[Any]]:
    yield from ((subject,) for subject in subjects())


@torch.no_grad()
def timings(
    subject: Any, device: str = "cuda", time_us: Callable[[Callable[[], object]], float] | None = None
) -> list[Timing]:
    """The step as it runs: a graph, replayed; every step goes on where the one before it ended."""
    model = model_of(subject.model, device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    recorder = engine("graphs", "CUDARecorder")() if device == "cuda" else None
    operations = engine("bench.steps", "operations_of")(torch.device(device))
    built = engine("bench.subjects", "engine_of")(subject, model, operations, recorder)
    step = engine("bench.steps", "stepping")(built, torch.arange(subject.batch, device=device))
    us = (time_us or events_us)(step)
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    weights = int(engine("bench.models", "weight_bytes")(model))
    return [StepTiming(subject.model, operation(subject), subject.batch, us, weights, memory)]


def events_us(step: Callable[[], object]) -> float:
    """The median of a few replays, each between two events."""
    for _ in range(WARM):
        step()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000)
    noises.append(relative_error(times))
    return median(times)
