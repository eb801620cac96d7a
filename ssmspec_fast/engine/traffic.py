"""A replay of Poisson request traffic: latencies and throughput of a scheduler.

    arrivals    independent gaps, exponential of mean 1 / rate                                 (1)
    latency     from arrival to the last token; percentiles are latencies that were observed   (2)
    throughput  tokens emitted from the first arrival to the last end                          (3)

Source: Snakes and Ladders, section 4.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import torch

from ssmspec_ref.errors import ParameterError

from .scheduler import Scheduler, Served


class VirtualClock:
    """Time that advances by steps only: a step of b rows takes `step_time[b]`. Units: seconds."""

    def __init__(self, step_time: Mapping[int, float]) -> None:
        self.moment, self.step_time = 0.0, step_time

    def now(self) -> float:
        return self.moment

    def stepped(self, rows: int) -> None:
        self.moment += self.step_time[rows]

    def sleep_until(self, moment: float) -> None:
        self.moment = max(self.moment, moment)


def poisson(rate: float, requests: int, seed: int) -> list[float]:
    """Arrival times (1). Raises: ParameterError (rate or requests not positive)."""
    if not (rate > 0 and requests >= 1):
        raise ParameterError(f"rate and requests are {rate} and {requests}; give positive numbers")
    draw = torch.empty(requests, dtype=torch.float64).exponential_(rate, generator=torch.Generator().manual_seed(seed))
    return draw.cumsum(0).tolist()


@dataclass(frozen=True)
class Traffic:
    """The result of a replay. Units: seconds, tokens per second."""

    served: tuple[Served, ...]

    def latency(self, percent: float) -> float:
        """Latency at a percentile (2)."""
        return percentile([one.latency for one in self.served], percent)

    def wait(self, percent: float) -> float:
        """Time from arrival to the first token, at a percentile as in (2)."""
        return percentile([one.wait for one in self.served], percent)

    @property
    def throughput(self) -> float:
        """Throughput (3)."""
        time = max(one.finish for one in self.served) - min(one.arrival for one in self.served)
        return sum(len(one.tokens) for one in self.served) / time if time else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """A percentile; always one of the values."""
    return sorted(values)[max(0, ceil(percent / 100 * len(values)) - 1)]


def replay(
    scheduler: Scheduler,
    prompts: Sequence[Sequence[int]],
    arrivals: Sequence[float],
    ended: Callable[[int], None] = lambda count: None,
) -> Traffic:
    """Submits every prompt at its arrival time and runs until all have ended; arrivals count from now. After each turn
    `ended` receives the number that have ended.

    Raises: ParameterError (not one arrival for each prompt, or arrivals out of order), and what `Scheduler.submit` raises.
    """
    if not prompts or len(prompts) != len(arrivals) or any(b < a for a, b in pairwise(arrivals)):
        raise ParameterError(
            f"there are {len(prompts)} prompts and {len(arrivals)} arrivals; give at least one prompt, and arrivals in order"
        )
    clock, policy = scheduler.clock, scheduler.policy
    origin, coming, done = clock.now(), list(zip(arrivals, prompts, strict=True)), list[Served]()
    while coming or not scheduler.idle:
        while coming and origin + coming[0][0] <= clock.now():
            arrival, prompt = coming.pop(0)
            scheduler.submit(prompt, arrival=origin + arrival)
        if not scheduler.running and not scheduler.engine.rounds:
            moments = [origin + coming[0][0]] if coming else []
            if scheduler.waiting:
                moments.append(policy.next_admission([one.arrival for one in scheduler.waiting]))
            clock.sleep_until(min(moments))
            if coming and origin + coming[0][0] <= clock.now():
                continue
        done += scheduler.turn()
        ended(len(done))
    return Traffic(tuple(sorted(done, key=lambda one: one.number)))
