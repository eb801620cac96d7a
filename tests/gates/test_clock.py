"""A median is replayed until it is known well enough, within bounds, and the GPU rests between replays."""

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
import torch

from perf_gates.gpu import clock


class Replayed:
    """A graph and its events on a clock of their own: each replay takes the next of these times, in microseconds."""

    def __init__(self, us: Iterator[float]) -> None:
        self.us, self.now, self.rested, self.replays = us, 0.0, 0.0, 0

    def replay(self) -> None:
        self.now += next(self.us)
        self.replays += 1

    def sleep(self, seconds: float) -> None:
        self.rested += 1e6 * seconds

    def event(self, **_: Any) -> Any:
        return Event(self)


class Event:
    def __init__(self, graph: Replayed) -> None:
        self.graph, self.at = graph, 0.0

    def record(self) -> None:
        self.at = self.graph.now

    def synchronize(self) -> None:
        """The clock stands."""

    def elapsed_time(self, end: "Event") -> float:
        return (end.at - self.at) / 1000


def times(us: Iterator[float], replays: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], Replayed]:
    graph = Replayed(us)
    monkeypatch.setattr(torch.cuda, "Event", graph.event)
    monkeypatch.setattr(clock, "sleep", graph.sleep)
    return clock._replays_us(graph.replay, replays), graph


def test_a_steady_time_is_taken_as_often_as_asked_for_and_the_gpu_rests_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    found, graph = times(cycle([100.0, 101.0]), 7, monkeypatch)
    assert len(found) == 7 == graph.replays - 2
    assert clock.relative_error(found) <= clock.ENOUGH
    assert graph.rested == pytest.approx(clock.PAUSE * sum(found))


def test_a_noisy_time_is_taken_again_until_it_is_known_or_was_taken_four_times_as_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noisy, _ = times(cycle([100.0, 102.5, 97.5]), 7, monkeypatch)
    assert 7 < len(noisy) < 28
    assert clock.relative_error(noisy) <= clock.ENOUGH < clock.relative_error(noisy[:7])
    hopeless, _ = times(cycle([100.0, 200.0, 300.0]), 7, monkeypatch)
    assert len(hopeless) == 28


def test_nothing_is_taken_again_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the least that are asked for; the clock goes on by a second at every look."""
    us, now = cycle([100.0, 200.0, 300.0]), iter(range(100))
    monkeypatch.setattr(clock, "monotonic", lambda: next(now))
    assert len(clock.repeated(lambda: next(us), 3, 41, clock.ENOUGH, seconds=5)) == 7
    assert len(clock.repeated(lambda: next(us), 3, 41, clock.ENOUGH, seconds=1)) == 3


def test_a_median_leaves_its_error_among_the_noises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "noises", [])
    assert clock.known_median([1.0, 2.0, 4.0]) == 2.0
    assert clock.noises == [clock.relative_error([1.0, 2.0, 4.0])]
