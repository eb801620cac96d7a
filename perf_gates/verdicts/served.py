"""A stream of requests replayed with the measured steps: latency with and without speculation, at the same load.

    arrivals    Poisson, REQUESTS of LENGTH tokens each, at a share `load` of what plain decoding serves at CAPACITY     (1)
    service     the periodic-clearing queue of `ssmspec_ref.cost.traffic`, CAPACITY requests or WAIT at most               (2)
    plans       for a batch the step of the next larger measured batch; with speculation the better one of plain
    decoding and PNG(6,1) at tau                                                                          (3)
    p95         the latency that 95 % of the requests do not exceed                                                      (4)

Units: seconds.
"""

from functools import cache
from typing import Any

from ssmspec_ref.cost import traffic
from ssmspec_ref.cost.traffic import Plan

from .measured import At, Missing, Results

REQUESTS, LENGTH, CAPACITY, SEED = 400, 400, 16, 7
BATCHES = (1, 2, 4, 8, 16)
WAIT = 0.05
TAU = 2.36
PLAIN, SPECULATIVE = "plain, window of 1", "end to end PNG(6,1)"


def sources(place: At) -> list[At]:
    """The steps that a figure is computed from."""
    names = (PLAIN,) if place.operation.startswith("plain") else (PLAIN, SPECULATIVE)
    return [At("bench", place.shape, name, batch) for name in names for batch in BATCHES]


def p95(results: Results, place: At, baselines: Results | None = None) -> float:
    """(1) to (4) of `plain, load 0.5` or `speculative, load 0.5`. The load is a share of what plain decoding serves, so the
    plain steps are those of `baselines`, if given.

    Raises: Missing for another name, or a step that was not measured.
    """
    kind, _, load = place.operation.partition(", load ")
    if kind not in ("plain", "speculative") or not load:
        raise Missing(f"{place.operation!r} is not a traffic operation; it must be plain or speculative, with a load")
    us = {at: (baselines or results if at.operation == PLAIN else results).us(at) for at in sources(place)}
    steps = tuple(
        (name, tuple(us.get(At("bench", place.shape, name, b), 0.0) for b in BATCHES)) for name in (PLAIN, SPECULATIVE)
    )
    return _replayed(kind == "speculative", float(load), steps)


@cache
def _replayed(speculative: bool, load: float, steps: Any) -> float:
    measured = dict(steps)
    table = {}
    for batch in range(1, CAPACITY + 1):
        at = next(i for i, b in enumerate(BATCHES) if b >= batch)
        plans = [Plan(0, 0, 1.0, measured[PLAIN][at] * 1e-6)]
        plans += [Plan(1, 6, TAU, measured[SPECULATIVE][at] * 1e-6)] if speculative else []
        table[batch] = traffic.best_plan(batch, plans)  # (3)
    rate = load * CAPACITY / (LENGTH * measured[PLAIN][-1] * 1e-6)
    arriving, lengths = traffic.arrivals(rate, REQUESTS, SEED), [LENGTH] * REQUESTS  # (1)
    return traffic.latency_percentile(traffic.periodic_clearing(arriving, lengths, table, CAPACITY, WAIT), 95)  # (2) (4)
