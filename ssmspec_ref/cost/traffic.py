"""Serving a stream of requests: Poisson arrivals, a queue that is emptied in batches, speculation chosen by batch size.

The paper prints P(r <= k) = sum exp(+lambda T) (lambda T)^n / n!. The sign of the exponent is wrong: the printed sum exceeds
1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, exp, fsum, inf, isfinite, lgamma, log

import numpy as np

from ..errors import ParameterError


def at_most(requests: int, rate: float, wait: float) -> float:
    """P(r <= k) = sum_{n <= k} exp(-lambda T) (lambda T)^n / n!: at most k requests within the waiting time.

    Each term is exp(n log(lambda T) - lambda T - log n!), because its factors would overflow long before the term does.

    Units: rate in requests per second, wait in seconds.
    Raises: ParameterError (a rate or wait that is negative or not finite).
    Source: Snakes and Ladders, section 4, with the sign of the printed formula corrected.
    """
    if not (0 <= rate < inf and 0 <= wait < inf):
        raise ParameterError(f"rate and wait are {rate} and {wait}; give finite numbers of at least 0")
    mean = rate * wait
    if mean == 0:
        return float(requests >= 0)
    return min(1.0, fsum(exp(n * log(mean) - mean - lgamma(n + 1)) for n in range(requests + 1)))


@dataclass(frozen=True)
class Plan:
    """What is speculated at one batch size.

    `drafts` rows of `tokens` draft tokens, `tau`, the average number of tokens that a window emits, and the time of a window.
    No drafts means plain decoding, tau = 1.

    Raises: ParameterError for tau below 1, or a time that is not positive.
    """

    drafts: int
    tokens: int
    tau: float
    step_time: float

    def __post_init__(self) -> None:
        if not (1 <= self.tau < inf and 0 < self.step_time < inf):
            raise ParameterError(
                f"a plan has tau {self.tau} and step_time {self.step_time}; give tau >= 1 and a time > 0, both finite"
            )


def best_plan(batch: int, plans: Sequence[Plan]) -> Plan:
    """The plan with the highest throughput batch * tau / step_time; the first one on ties.

    Raises: ParameterError (no plan).
    Source: Snakes and Ladders, section 5.3 (a configuration tabulated for each batch size).
    """
    if not plans:
        raise ParameterError(f"batch {batch} has no plan; give at least one, such as plain decoding")
    return max(plans, key=lambda plan: batch * plan.tau / plan.step_time)


@dataclass(frozen=True)
class Served:
    """One request: arrival, start of its batch, finish, and the size of its batch. Units: seconds."""

    arrival: float
    start: float
    finish: float
    batch: int

    @property
    def latency(self) -> float:
        """T_total = T_wait + T_processing."""
        return self.finish - self.arrival


def arrivals(rate: float, requests: int, seed: int) -> list[float]:
    """Poisson arrivals: independent exponential gaps of mean 1 / rate.

    Raises: ParameterError (rate or requests not positive).
    """
    if not rate > 0 or requests < 1:
        raise ParameterError(f"rate and requests are {rate} and {requests}; give positive numbers")
    gaps = np.random.default_rng(seed).exponential(1 / rate, requests)
    return [float(t) for t in np.cumsum(gaps)]


def periodic_clearing(
    arriving: Sequence[float], lengths: Sequence[int], table: Mapping[int, Plan], capacity: int, wait: float
) -> list[Served]:
    """Serve requests in batches from one queue and one server.

    The queue is cleared when it holds `capacity` requests, or when its oldest has waited `wait`            (1)
    and the server is free; requests arrived by then, up to `capacity`, form one batch of b                 (2)
    A batch takes ceil(longest / tau_b) windows of step_time_b                                              (3)

    Raises: ParameterError (a batch size without a plan, lists of unequal length, arrivals out of order or not finite, a
    capacity below 1, a wait that is negative or not finite).
    Source: Snakes and Ladders, section 4.
    """
    _check(arriving, lengths, table, capacity, wait)
    served: list[Served] = []
    free = 0.0
    while len(served) < len(arriving):
        i = len(served)
        full = arriving[i + capacity - 1] if i + capacity <= len(arriving) else float("inf")
        start = max(min(full, arriving[i] + wait), free)  # (1)
        come = [t for t in arriving[i : i + capacity] if t <= start]  # (2)
        plan = table[len(come)]
        windows = ceil(max(lengths[i : i + len(come)]) / plan.tau)
        free = start + windows * plan.step_time  # (3)
        served += [Served(t, start, free, len(come)) for t in come]
    return served


def throughput(served: Sequence[Served], lengths: Sequence[int]) -> float:
    """Tokens per second from the first arrival to the last finish."""
    return sum(lengths) / (max(s.finish for s in served) - min(s.arrival for s in served))


def latency_percentile(served: Sequence[Served], percent: float) -> float:
    """The latency in seconds that `percent` of the requests do not exceed."""
    return float(np.percentile([s.latency for s in served], percent, method="inverted_cdf"))


def _check(arriving: Sequence[float], lengths: Sequence[int], table: Mapping[int, Plan], capacity: int, wait: float) -> None:
    if capacity < 1 or not 0 <= wait < inf:
        raise ParameterError(f"capacity and wait are {capacity} and {wait}; give capacity >= 1 and a finite wait >= 0")
    missing = [b for b in range(1, capacity + 1) if b not in table]
    if missing:
        raise ParameterError(f"the table holds no plan for batches of {missing}; give one for each size from 1 to {capacity}")
    if len(arriving) != len(lengths) or not all(isfinite(t) for t in arriving) or any(b < a for a, b in pairwise(arriving)):
        raise ParameterError(
            f"there are {len(arriving)} arrivals and {len(lengths)} lengths; give one arrival for each, "
            "finite and in order of time"
        )
    if any(length < 1 for length in lengths):
        raise ParameterError(f"lengths are {list(lengths)}; every request must ask for 1 token or more")
