"""One step of a subject: as a graph and launch by launch, and its phases as in Snakes and Ladders, section 5.1.

draft        the proposal
forward      the feed, all layers, the logits
acceptance   the verdict
copy         states, caches and cursors advance (for replay and joint attainment by the accepted tokens); tokens are stored
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..engine.graphs import WARM, CUDARecorder, awake, recording
from ..engine.loop import Engine
from ..models.model import Model
from ..operations import Operations
from ..operations.torch_ops import TorchOperations
from .clock import times_us
from .subjects import ROOM, Subject, begin, engine_of

PHASES = ("draft", "forward", "acceptance", "copy")


@dataclass(frozen=True)
class StepTime:
    """Units: microseconds, bytes. `eager_us` is the step launch by launch, `memory` the bytes of the pools, `peak` of
    everything."""

    subject: Subject
    us: float
    eager_us: float
    phases: dict[str, float] = field(default_factory=dict)
    memory: int = 0
    peak: int = 0


def operations_of(device: torch.device) -> Operations:
    """Fast mode: the kernels on a GPU, PyTorch elsewhere."""
    if device.type != "cuda":
        return TorchOperations()
    from ..operations.triton_ops import TritonOperations

    return TritonOperations()


@torch.no_grad()
def measure(subject: Subject, model: Model, replays: int = 25, eager: bool = True) -> StepTime:
    """The times of a step; each step begins where the previous one ended, and no sequence reaches its end."""
    cuda = model.device.type == "cuda"
    if cuda:
        gc.collect()  # frees the previous engine, whose graphs and tensors refer to each other
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    most = ROOM // subject.advanced - 8
    replays = max(3, min(replays, most // 4))
    engine = engine_of(subject, model, operations_of(model.device), CUDARecorder() if cuda else None)
    slots = torch.arange(subject.batch, device=model.device)
    step = stepping(engine, slots)
    us = times_us([step], model.device, replays)[0]
    refed = engine.target.refed(slots)  # for every step but the first
    again(engine, subject)
    own = times_us([eagerly(engine, slots)], model.device, min(replays, 7))[0] if eager else us
    again(engine, subject)
    parts = recorded(engine, slots, refed) if cuda else list(split(engine, slots, refed))
    phases = dict(zip(PHASES, times_us(parts, model.device, replays), strict=True))
    peak = torch.cuda.max_memory_allocated() if cuda else 0
    return StepTime(subject, us, own, phases, engine.target.pools.bytes, peak)


def again(engine: Engine, subject: Subject) -> None:
    """Resets the sequences."""
    assert engine.sequences is not None
    begin(engine, engine.sequences, range(subject.batch))


def stepping(engine: Engine, slots: torch.Tensor) -> Callable[[], object]:
    """The step as it runs in production: a replay, or, without a recorder, launch by launch.

    If the host must read which of several graphs comes next, that wait is part of the step.
    """
    graphs, target = engine.graphs, engine.target
    if graphs is None:
        return eagerly(engine, slots)
    if len(list(target.every_refed())) > 1:
        return lambda: graphs.step(slots, target.refed(slots))
    graphs.step(slots, target.refed(slots))
    return next(iter(graphs.recorded.values())).replay


def eagerly(engine: Engine, slots: torch.Tensor) -> Callable[[], object]:
    sequences = engine.sequences
    assert sequences is not None
    return lambda: engine.judge(engine.drafter.propose(sequences, awake(sequences, slots)), sequences)


def split(engine: Engine, slots: torch.Tensor, refed: int | None = None) -> tuple[Callable[[], object], ...]:
    """The phases, each a call that continues from the previous one."""
    sequences, held = engine.sequences, dict[str, Any]()
    assert sequences is not None

    def draft() -> None:
        held["proposal"] = engine.drafter.propose(sequences, awake(sequences, slots)).fed(refed)

    def forward() -> None:
        held["feed"] = engine.target.feed(held["proposal"].window, sequences, fits=True)
        held["logits"] = engine.target.verify(held["feed"])

    def acceptance() -> None:
        held["verdict"] = engine.acceptance(held["proposal"], held["logits"], sequences, engine.operations)

    def copy() -> None:
        engine.target.commit(held["feed"], held["verdict"])
        sequences.commit(held["verdict"], engine.operations)

    return draft, forward, acceptance, copy


def recorded(engine: Engine, slots: torch.Tensor, refed: int) -> list[Callable[[], object]]:
    """The phases as four graphs."""
    parts, graphs, pool = split(engine, slots, refed), list[Any](), None
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            for part in parts:
                part()
    torch.cuda.current_stream().wait_stream(side)
    for part in parts:
        graphs.append(torch.cuda.CUDAGraph())
        with recording(graphs[-1], pool):
            part()
        pool = graphs[-1].pool()
    return [graph.replay for graph in graphs]
