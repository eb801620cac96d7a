"""What is recorded as a CUDA graph is not disturbed by Python's collector."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from perf_gates.gpu import clock
from ssmspec_fast.engine.graphs import recording


class Graph:
    """A graph that is part of a cycle; when it is freed, so is what the device holds for it."""

    freed: list[bool]

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        self.freed.append(Recording.runs)


class Recording:
    runs = False


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    @contextmanager
    def graph(graph: Any, pool: Any = None) -> Iterator[None]:
        Recording.runs = True
        try:
            yield
        finally:
            Recording.runs = False

    monkeypatch.setattr(torch.cuda, "graph", graph)
    for name in ("CUDAGraph", "Stream", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(Graph, "freed", [], raising=False)
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    yield
    gc.set_threshold(*thresholds)
    gc.enable()


def run() -> None:
    """Makes garbage, and enough objects that the collector would come."""
    Graph()
    assert len([{"a": [i]} for i in range(1000)]) == 1000


def engine(run: Callable[[], None]) -> None:
    with recording(None):
        run()


def gates(run: Callable[[], None]) -> None:
    clock.recorded([run], warm=0)


RECORDERS = pytest.mark.parametrize("record", [engine, gates])


@RECORDERS
def test_no_graph_is_freed_while_another_is_recorded(record: Callable[[Callable[[], None]], None]) -> None:
    freed: list[bool] = []

    def step() -> None:
        run()
        freed.extend(Graph.freed)

    record(step)
    assert freed == []
    assert gc.isenabled()
    gc.collect()
    assert Graph.freed == [False]


def test_the_collector_comes_where_it_is_not_held_off() -> None:
    with torch.cuda.graph(None):  # type: ignore[arg-type]
        run()
    assert Graph.freed == [True]


@RECORDERS
def test_the_collector_is_as_it_was_after_a_failure_too(record: Callable[[Callable[[], None]], None]) -> None:
    def fails() -> None:
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        record(fails)
    assert gc.isenabled()
    gc.disable()
    record(lambda: None)
    assert not gc.isenabled()
