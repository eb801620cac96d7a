"""Steps of the engine at the dims of the papers, with random weights, as the papers' tables ask for them.

The models, the steps and what they are called are those of `ssmspec bench`; here they are timed by the clock of the other
parts, with their noise, the processors' clock, and the peak of memory, so that gates can read them. The name of a step is its
method, its window or tree, and its drafts: `replay, window of 7, 2 drafts`.

A step with drafting is called `end to end` and its drafter. The drafter's forwards run and count; what is accepted is forced,
behind the same reading of the logits, so that a stated tau can be set against the time.
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
FIRST = ("mamba2-2.7b", "mamba-in-llama-8b")


@dataclass(frozen=True)
class StepTiming(Timing):
    """A step, and the most memory that it took. Units: microseconds, bytes."""

    memory: int = 0


@dataclass(frozen=True)
class Drafted:
    """A step with drafting: the method and the window or tree that verifies, and what drafts it."""

    model: str
    operation: str
    batch: int

    @property
    def verified(self) -> tuple[str, int, int, bool]:
        """The method, the tokens of a window, its rows, whether they are STree's tree A."""
        return DRAFTED[self.operation]


DRAFTED = {
    "end to end PNG(6,2)": ("joint", 7, 2, False),
    "end to end PNG(6,1)": ("replay", 7, 1, False),
    "end to end chain 5": ("replay", 5, 1, False),
    "end to end tree 13": ("tree", 13, 1, True),
}
SMALL = "mamba-in-llama-2l-1024"
"""The 2-layer drafter of `gates.toml`; the paper gives no dims of its own."""
SMALL_DIMS = (2, [], 1024, 512, 3584, 16, 128256)
"""Layers, those with attention, width, channels of B and x, width of the MLP, heads, vocabulary."""
ROWS = 64
"""Room for the window behind the last token that a sequence may get."""
FORCED = 2
"""Tokens that a step with drafting emits; its time is the same for any number."""


def engine(module: str, name: str) -> Any:
    """A function of the engine, by name."""
    return getattr(import_module(f"ssmspec_fast.{module}"), name)


def operation(subject: Any) -> str:
    """What a step is called in `gates.toml`."""
    shape = f"tree of {len(subject.parents)}" if subject.parents else f"window of {subject.window}"
    emitted = f", {subject.advanced} emitted" if subject.advanced > 1 else ""
    return f"{subject.method}, {shape}{f', {subject.drafts} drafts' if subject.drafts > 1 else ''}{emitted}"


@lru_cache(maxsize=2)
def model_of(name: str, device: str) -> Any:
    """A target and a drafter at a time: the ones before make room."""
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
        if model in known and name in DRAFTED:
            found.append(Drafted(model, name, batch))
            continue
        method, _, rest = name.partition(", ")
        kind, _, size = rest.partition(" of ")
        tokens, _, drafts = size.partition(", ")
        if model not in known or method not in names or kind not in ("window", "tree") or not tokens.isdigit():
            continue  # a step that needs a drafter or trained weights: its gate stays without a measurement, and says so
        rows = int(drafts.split()[0]) if drafts else 1
        parents = trees(int(tokens)) if kind == "tree" else None
        found.append(subject(model, method, int(tokens), batch, rows, parents))
    return sorted(found, key=telling)


def telling(step: Any) -> tuple[Any, ...]:
    """The order in which steps are timed: what most gates read first, plain steps before all others of their model."""
    plain = not isinstance(step, Drafted) and step.method == "plain"
    model = FIRST.index(step.model) if step.model in FIRST else len(FIRST)
    return model, step.model, not plain, not isinstance(step, Drafted), str(step)


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
    make = with_drafting if isinstance(subject, Drafted) else engine("bench.subjects", "engine_of")
    built = make(subject, model, operations, recorder)
    step = engine("bench.steps", "stepping")(built, torch.arange(subject.batch, device=device))
    us = (time_us or events_us)(step)
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    weights = int(engine("bench.models", "weight_bytes")(model))
    name = subject.operation if isinstance(subject, Drafted) else operation(subject)
    return [StepTiming(subject.model, name, subject.batch, us, weights, memory)]


def with_drafting(drafted: Drafted, model: Any, operations: Any, recorder: Any) -> Any:
    """An engine that drafts, its sequences begun."""
    method, tokens, rows, tree = drafted.verified
    device = str(model.device)
    shape = engine("draft.shapes", "TREE_A") if tree else engine("draft.shapes", "chain")(tokens - 1)
    if "PNG" in drafted.operation:
        table = torch.randint(model.config.vocabulary, (model.config.vocabulary, rows, tokens - 1), device=model.device)
        drafter = engine("draft.ngram", "NGram")(tokens - 1, rows, table)
    else:
        dims = engine("bench.models", "DIMS")
        small = "tiny" if drafted.model.startswith("tiny") else SMALL
        dims.setdefault(SMALL, engine("bench.models", "_in_llama")(*SMALL_DIMS))
        sizes = {
            "slots": drafted.batch,
            "cache": ROWS + engine("bench.subjects", "CONTEXT") + engine("bench.subjects", "ROOM"),
        }
        drafter = engine("draft.model", "ModelDrafter")(model_of(small, device.split(":")[0]), shape, operations, **sizes)
    parents = tuple(shape) if tree else None
    subject = engine("bench.subjects", "Subject")(drafted.model, method, tokens, drafted.batch, rows, parents, FORCED)
    return begun(subject, model, operations, recorder, drafter)


def begun(subject: Any, model: Any, operations: Any, recorder: Any, drafter: Any) -> Any:
    """As `engine_of` of the benchmark, with a drafter of its own."""
    context, room = (engine("bench.subjects", name) for name in ("CONTEXT", "ROOM"))
    method = engine("bench.subjects", "METHODS")[subject.method](subject.drafts)
    forced = engine("bench.subjects", "Forced")(subject, model)
    given = {"operations": operations, "slots": subject.batch, "cache": context + room, "graphs": recorder}
    built = engine("engine", "Engine")(model, drafter, method, forced, **given)
    sequences = built.begin(engine("engine", "Settings")(room))
    slots = torch.arange(subject.batch, device=model.device)
    for slot in range(subject.batch):
        sequences.add(slot, [(7 * slot + i) % 61 for i in range(context + 1)], room - 1, slot)
    built.target.method.start(built.target.pools, slots)
    built.target.pools.length[: subject.batch] = context
    drafter.start(sequences, slots)
    return built


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
