"""Steps as graphs: the launches of a window are recorded once for each shape and replayed on the same memory.

A step reads and writes tensors with fixed addresses: the slots of its rows, the sequences, the pools. Only their contents
differ between replays; shapes, and what the host decided during the recording, do not.

    key    = rows of the window, the drafter's shape, and the places in front of the roots         (1)
    record : on rows of padding only, which write nothing; once to compile, then to record          (2)
    replay : the slots are written, and the list of launches runs                                   (3)

A drafter that needs the host (`on_device` is not set) runs before the graph, and its window is copied into it.
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
"""Runs before a recording: the first compiles, the second checks that nothing is left to compile."""


class Recorder(Protocol):
    """Records a step: returns the result of the run, and a function that replays it into the same tensors."""

    def __call__(self, run: Callable[[], T]) -> tuple[T, Callable[[], None]]: ...


@contextmanager
def recording(graph: Any, pool: Any = None) -> Iterator[None]:
    """Records what is launched inside. Python's garbage collector is off: freeing a graph would abort the recording."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool):
            yield
    finally:
        if collects:
            gc.enable()


class CUDARecorder:
    """CUDA graphs with one memory pool. They warm up on one stream, because cuBLAS allocates a workspace per stream."""

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
    """What a step needs of an engine."""

    drafter: Any
    target: Any

    def judge(self, proposal: Proposal, sequences: Sequences) -> Verdict: ...

    def proposed(self, sequences: Sequences, slots: Tensor) -> Proposal: ...


@dataclass
class Recorded:
    """A graph and the tensors that it fills; `read` is the input of the target's head."""

    slots: Tensor
    proposal: Proposal
    verdict: Verdict
    read: Tensor
    replay: Callable[[], None]


class Graphs:
    """The steps of one engine over one set of sequences, by shape."""

    def __init__(self, recorder: Recorder, engine: Stepping, sequences: Sequences) -> None:
        self.recorder, self.engine, self.sequences = recorder, engine, sequences
        self.shared = sequences.shared  # a recorded kernel reads it at this address
        self.recorded: dict[Any, Recorded] = {}
        self.settling: dict[int, tuple[Tensor, Callable[[], None]]] = {}

    def settle(self, slots: Tensor) -> None:
        """Brings the states of these rows up to date, for a method that needs only launches for it."""
        held, replay = self.settling.get(len(slots)) or self.record_settling(slots)
        held.copy_(slots)
        replay()

    def record_settling(self, slots: Tensor) -> tuple[Tensor, Callable[[], None]]:
        """Records it on padding (2)."""
        held, target = torch.full_like(slots, -1), self.engine.target
        settle = target.method.settle
        _, replay = self.recorder(lambda: settle(target.pools, held, target.model, self.sequences, target.operations))
        self.settling[len(slots)] = held, replay
        return self.settling[len(slots)]

    def step(self, slots: Tensor, refed: int, shape: Any = None) -> tuple[Proposal, Verdict]:
        """One window of these rows (1) to (3); `refed` is given by the method and `shape` by the drafter."""
        drafter = self.engine.drafter
        if drafter.on_device:
            key = len(slots), shape, refed
            step = self.recorded.get(key) or self.record(key, slots, refed)
            step.slots.copy_(slots)
        else:
            proposal = self.engine.proposed(self.sequences, slots).fed(refed)
            key = signature(proposal)
            step = self.recorded.get(key) or self.record_judgement(key, proposal)
            for held, new in zip(tensors_of(step.proposal), tensors_of(proposal), strict=True):
                held.copy_(new)
        step.replay()
        self.engine.target.read = step.read
        return step.proposal, step.verdict

    def record(self, key: Any, slots: Tensor, refed: int) -> Recorded:
        """Records a step whose drafter works on the device (2)."""
        held = torch.full_like(slots, -1)

        def run() -> tuple[Proposal, Verdict]:
            proposal = self.engine.drafter.propose(self.sequences, awake(self.sequences, held)).fed(refed)
            return proposal, self.engine.judge(proposal, self.sequences)

        (proposal, verdict), replay = self.recorder(run)
        self.recorded[key] = Recorded(held, proposal, verdict, self.engine.target.read, replay)
        return self.recorded[key]

    def record_judgement(self, key: Any, proposal: Proposal) -> Recorded:
        """Records everything after the proposal (2)."""
        window = proposal.window
        fields: dict[str, Any] = {"tokens": window.tokens.clone(), "slots": torch.full_like(window.slots, -1)}
        fields |= {name: x.clone() for name in ("lengths", "parents") if (x := getattr(window, name)) is not None}
        q = None if proposal.q is None else proposal.q.clone()
        held = Proposal(window._replace(**fields), q, proposal.law)
        verdict, replay = self.recorder(lambda: self.engine.judge(held, self.sequences))
        self.recorded[key] = Recorded(held.window.slots, held, verdict, self.engine.target.read, replay)
        return self.recorded[key]


def awake(sequences: Sequences, slots: Tensor) -> Tensor:
    """The slots, without those of sequences that have ended: the host may learn of an end one step late."""
    return torch.where(sequences.ended[slots.clamp_min(0)], -1, slots)


def signature(proposal: Proposal) -> Any:
    """The properties of a proposal that a recorded verification depends on."""
    window = proposal.window
    return (
        tuple(window.tokens.shape), window.lengths is None, window.parents is None, window.drafts, window.refed,
        proposal.q is None, proposal.law,
    )  # fmt: skip


def tensors_of(proposal: Proposal) -> list[Tensor]:
    return list(tensors([*proposal.window[:4], proposal.q]))
