"""What is recorded as a CUDA graph is not disturbed by Python's collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ssmspec_fast.graphs import recording


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


def test_no_graph_is_freed_while_another_is_recorded() -> None:
    with recording(None):
        run()
        assert Graph.freed == []
    assert gc.isenabled()
    gc.collect()
    assert Graph.freed == [False]


def test_the_collector_comes_where_it_is_not_held_off() -> None:
    with torch.cuda.graph(None):  # type: ignore[arg-type]
        run()
    assert Graph.freed == [True]


def test_the_collector_is_as_it_was_after_a_failure_too() -> None:
    with pytest.raises(ValueError, match="planted"), recording(None):
        raise ValueError("planted")
    assert gc.isenabled()
    gc.disable()
    with recording(None):
        pass
    assert not gc.isenabled()
