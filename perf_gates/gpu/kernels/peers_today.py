"""Kernels that engines run today, beside ours: each side's time and its distance from float64.

A case is one side of a cell. Before anything is timed, the first launch is compared with float64 (`today.side`): the error is
reported, and a side that is wrong is timed all the same, so that the table shows both. A side whose files are missing, or
that fails, is an error of its own case.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from perf_gates.gpu.clock import graph_us, is_compiling
from perf_gates.gpu.today import works
from perf_gates.gpu.today.side import Error, Side

from .steps import Timing


@dataclass(frozen=True)
class PeerTiming(Timing):
    """`side` is ours or names the project first; the other fields are those of `Error`."""

    work: str = ""
    side: str = ""
    kernels: int = 1
    used: float = float("nan")
    outputs: float = float("nan")
    states: float | None = None
    contract: str = ""


def cases() -> Iterator[tuple[str, str, int, str]]:
    return works.cases()


def timings(work: str, model: str, batch: int, side: str) -> list[Timing]:
    """Raises: PeerMissing, PeerFailed, WrongOutputError (an output that is not written whole or not finite)."""
    made = works.work_of(work, model).side(side, model, batch)
    error = None if is_compiling() else made.error()
    return [row(work, model, batch, side, made, microseconds(made), error)]


def microseconds(side: Side) -> float:
    """The time of one launch of a side: a cycle has other, small launches among those that are counted."""
    sequence = side.launches()
    return graph_us(sequence, side.written, side.pools) * len(sequence) / side.counted


def row(work: str, model: str, batch: int, name: str, side: Side, us: float, error: Error | None) -> PeerTiming:
    found = {} if error is None else vars(error)
    return PeerTiming(model, f"{work}, {name}", batch, us, 0, work, name, side.kernels, **found)
