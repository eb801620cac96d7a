"""Two calls timed alternately, until their ratio is known well enough.

    r_i   = log(over_i / under_i)                    of the i-th pair; the order within a pair alternates    (1)
    ratio = exp(median r),  error = 1.2533 sigma / sqrt(n), sigma from the quartiles                         (2)
    stop when error <= wanted, and at least `least` pairs were made, or at `most`                            (3)

Drift (clocks, heat, other processes) affects both calls of a pair and cancels in their ratio. Before a pair the caches are
flushed. A time below what the bytes allow is an error of the measurement, not a fast kernel:

    us >= max(bytes / bandwidth, launches x launch)                                                          (4)
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, log
from statistics import median, quantiles
from typing import Protocol


class ImplausibleTimeError(RuntimeError):
    """A measurement that is faster than its bytes can be moved, or its launches made."""


class WrongOutputError(RuntimeError):
    """A timed call did not compute what it should; its time is meaningless."""


class Clock(Protocol):
    """Tells how long a call took, in microseconds, with cold caches."""

    def us(self, call: Callable[[], object]) -> float: ...


@dataclass(frozen=True)
class Side:
    """A timed call: `check` raises WrongOutputError unless its output is right; `bytes` and `launches` of one call."""

    name: str
    call: Callable[[], object]
    check: Callable[[], None]
    bytes: int = 0
    launches: int = 1

    def plausible(self, us: float, bandwidth_tb_s: float, launch_us: float) -> None:
        """(4). Raises: ImplausibleTimeError."""
        least = max(self.bytes / (bandwidth_tb_s * 1e6), self.launches * launch_us)
        if us < least:
            raise ImplausibleTimeError(
                f"{self.name} took {us:.2f} us, but {self.bytes} bytes and {self.launches} launches take {least:.2f} us at "
                "least; check that the graph does what the formula counts"
            )


@dataclass(frozen=True)
class Pair:
    """A ratio, its relative error, and the times it was computed from. Units: microseconds."""

    over: str
    under: str
    ratio: float
    error: float
    over_us: tuple[float, ...]
    under_us: tuple[float, ...]


def measure(over: Side, under: Side, clock: Clock, *, wanted: float, least: int = 10, most: int = 200) -> Pair:
    """(1) to (3).

    Raises: WrongOutputError before anything is timed.
    """
    for side in (over, under):
        side.check()
    times: tuple[list[float], list[float]] = [], []
    while True:
        turn = len(times[0]) % 2
        for i in (turn, 1 - turn):
            times[i].append(clock.us((over, under)[i].call))
        logs = [log(a / b) for a, b in zip(*times, strict=True)]
        if len(logs) >= least and (error_of(logs) <= wanted or len(logs) >= most):  # (3)
            return Pair(over.name, under.name, exp(median(logs)), error_of(logs), tuple(times[0]), tuple(times[1]))


def error_of(logs: list[float]) -> float:
    """The error of (2)."""
    low, _, high = quantiles(logs, n=4)
    return 1.2533 * (high - low) / 1.349 / len(logs) ** 0.5


@dataclass(frozen=True)
class TimeGate:
    """A required ratio: our own best within a share `slack` on either side.

    Below it `under` has become slower, or `over` faster: the best should be updated. A pair whose error is above `noise` is
    comparable only if its ratio three errors lower and three errors higher have the same verdict.
    """

    name: str
    best: float
    slack: float
    noise: float

    def verdict(self, pair: Pair) -> str:
        """pass, FAIL, to tighten or not comparable. NaN never passes."""
        if not pair.error < inf:
            return "not comparable"
        away = 1.0 if pair.error <= self.noise else 1 + 3 * pair.error
        found = {self.of(ratio) for ratio in (pair.ratio / away, pair.ratio * away)}
        return found.pop() if len(found) == 1 else "not comparable"

    def of(self, ratio: float) -> str:
        """The verdict on a ratio that is known."""
        if not ratio <= self.best * (1 + self.slack):
            return "FAIL"
        return "pass" if ratio >= self.best / (1 + self.slack) else "to tighten"
