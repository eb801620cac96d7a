"""Steps as graphs: the launches of one window are recorded once for each shape, and replayed over the same memory.

A step reads and writes tensors that stay where they are: the slots of its rows, the sequences, the pools. What differs from
one replay to the next stands in them; shapes, and whatever the host decided while the step was recorded, do not differ.

    key    = rows of the window, the drafter's shape, and the room in front of the roots          (1)
    record : rows of padding alone, which touch nothing; first to compile, then to be recorded    (2)
    replay : the slots are written, and the list of launches runs                                 (3)

A drafter that needs the host (`on_device` is not set) proposes in front of the graph, and its window is copied into it.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from .sequences import Sequences
from .state import tensors
from .window import Proposal, Verdict

T = TypeVar("T")
WARM = 2
"""Runs in front of a recording: the first compiles, the second finds all of it compiled."""


class Recorder(Protocol):
    """Runs a step so that it can be replayed: what the run returned, and the replay, which fills the same tensors."""

    def __call__(self, run: Callable[[], T]) -> tuple[T, Callable[[], None]]: ...


@contextmanager
def recording(graph: Any, pool: Any = None) -> Iterator[None]:
    """What is launched inside is recorded. Python's collector waits: a graph that it freed would end the recording."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool):
            yield
    finally:
        if collects:
            gc.enable()


class CUDARecorder:
    """CUDA graphs, whose memory is one pool; they warm up on one stream, for cuBLAS holds memory for each that it ran on."""

    def __init__(self) -> None:
        self.pool: Any = None
        self.side: Any = None

    def __call__(self, run: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        side = self.side = self.side or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with recording(graph, self.pool):
            found = run()
        self.pool = graph.pool()
        return found, graph.replay


class Stepping(Protocol):
    """What a step is made of: an engine."""

    drafter: Any
    target: Any

    def judge(self, proposal: Proposal, sequences: Sequences) -> Verdict: ...


@dataclass
class Recorded:
    """A graph and the tensors that it fills; `read` is what the target's head read."""

    slots: Tensor
    proposal: Proposal
    verdict: Verdict
    read: Tensor
    replay: Callable[[], None]


class Graphs:
    """The steps of one engine over one set of sequences, by shape."""

    def __init__(self, recorder: Recorder, engine: Stepping, sequences: Sequences) -> None:
        self.recorder, self.engine, self.sequences = recorder, engine, sequences
        self.recorded: dict[Any, Recorded] = {}

    def step(self, slots: Tensor, behind: int, shape: Any = None) -> tuple[Proposal, Verdict]:
        """One window of these rows, `behind` as their method and `shape` as their drafter chose it: (1) to (3)."""
        drafter = self.engine.drafter
        if drafter.on_device:
            key = len(slots), shape, behind
            step = self.recorded.get(key) or self.record(key, slots, behind)
            step.slots.copy_(slots)
        else:
            proposal = drafter.propose(self.sequences, awake(self.sequences, slots)).fed(behind)
            key = signature(proposal)
            step = self.recorded.get(key) or self.record_judgement(key, proposal)
            for held, new in zip(tensors_of(step.proposal), tensors_of(proposal), strict=True):
                held.copy_(new)
        step.replay()
        self.engine.target.read = step.read
        return step.proposal, step.verdict

    def record(self, key: Any, slots: Tensor, behind: int) -> Recorded:
        """A step whose drafter works on the device (2)."""
        held = torch.full_like(slots, -1)

        def run() -> tuple[Proposal, Verdict]:
            proposal = self.engine.drafter.propose(self.sequences, awake(self.sequences, held)).fed(behind)
            return proposal, self.engine.judge(proposal, self.sequences)

        (proposal, verdict), replay = self.recorder(run)
        self.recorded[key] = Recorded(held, proposal, verdict, self.engine.target.read, replay)
        return self.recorded[key]

    def record_judgement(self, key: Any, proposal: Proposal) -> Recorded:
        """All behind the proposal (2)."""
        window = proposal.window
        fields: dict[str, Any] = {"tokens": window.tokens.clone(), "slots": torch.full_like(window.slots, -1)}
        fields |= {name: x.clone() for name in ("lengths", "parents") if (x := getattr(window, name)) is not None}
        q = None if proposal.q is None else proposal.q.clone()
        held = Proposal(window._replace(**fields), q, proposal.law)
        verdict, replay = self.recorder(lambda: self.engine.judge(held, self.sequences))
        self.recorded[key] = Recorded(held.window.slots, held, verdict, self.engine.target.read, replay)
        return self.recorded[key]


def awake(sequences: Sequences, slots: Tensor) -> Tensor:
    """The slots, without those of sequences that have ended: the host may learn of it a step later."""
    return torch.where(sequences.ended[slots.clamp_min(0)], -1, slots)


def signature(proposal: Proposal) -> Any:
    """What a recorded judgement takes for granted of its proposal."""
    window = proposal.window
    return (
        tuple(window.tokens.shape), window.lengths is None, window.parents is None, window.drafts, window.behind,
        proposal.q is None, proposal.law,
    )  # fmt: skip


def tensors_of(proposal: Proposal) -> list[Tensor]:
    return list(tensors([*proposal.window[:4], proposal.q]))
