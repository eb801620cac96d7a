"""Cost models, traffic and arithmetic of a step, and the queue in front of it."""

from math import ceil

import numpy as np
import pytest
from scipy import stats

from ssmspec_ref import cost
from ssmspec_ref.cost import traffic
from ssmspec_ref.cost.traffic import Plan
from ssmspec_ref.errors import ParameterError

from .refusals import refused

# --- fits and break-even -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("degree", "quadratic"), [(1, 0.0), (2, 0.004)])
def test_a_fit_recovers_the_model_that_made_the_times(degree: int, quadratic: float) -> None:
    sizes = [1, 5, 13, 31, 63]
    times = [quadratic * n**2 + 0.13 * n + 25.6 for n in sizes]
    found = cost.fit(sizes, times, degree)
    assert np.allclose([found.quadratic, found.linear, found.fixed], [quadratic, 0.13, 25.6], rtol=1e-9, atol=1e-12)


def test_the_papers_end_points_give_its_slope() -> None:
    """STree, figure 3: 15 nodes in 27.6 ms, 63 nodes in 34.0 ms."""
    found = cost.fit([15, 63], [27.6, 34.0], 1)
    assert round(found.linear, 3) == 0.133
    assert round(found.fixed, 1) == 25.6


def test_drafting_raises_what_a_tree_must_gain() -> None:
    tree, chain = cost.StepCost(20.0, 0.5), cost.StepCost(18.0, 0.4)
    without = cost.break_even(tree, 13, chain, 5)
    drafted = cost.break_even(cost.StepCost(20.0, 0.5, drafting=6.0), 13, cost.StepCost(18.0, 0.4, drafting=3.0), 5)
    assert without == 26.5 / 20.0
    assert drafted == 32.5 / 23.0 > without


def test_speculation_pays_exactly_above_the_break_even() -> None:
    tree, chain = cost.StepCost(20.0, 0.5, drafting=6.0), cost.StepCost(18.0, 0.4, drafting=3.0)
    ratio = cost.break_even(tree, 13, chain, 5)
    base = cost.speedup(2.0, chain(5), 18.0)
    assert cost.speedup(2.0 * ratio, tree(13), 18.0) == pytest.approx(base, rel=1e-15)
    assert cost.speedup(2.0 * ratio * 1.001, tree(13), 18.0) > base


def test_the_papers_speedup_is_tau_over_cost() -> None:
    """Snakes and Ladders, tables 3 and 5: 20.74 ms against 14.10 ms; 1.60x on MT-Bench implies 2.35 tokens a window."""
    assert cost.speedup(2.353, 20.74, 14.10) == pytest.approx(1.60, abs=0.005)  # the table prints two decimals


@pytest.mark.parametrize(
    "call",
    [
        lambda: cost.fit([1, 2], [1.0, 2.0], 3),
        lambda: cost.fit([1, 1, 1], [1.0, 1.0, 1.0], 1),
        lambda: cost.fit([1, 2, 3], [1.0, 2.0], 1),
        lambda: cost.speedup(0.5, 1.0, 1.0),
        lambda: cost.speedup(2.0, float("nan"), 1.0),
        lambda: cost.fit([1, 2, 3], [1.0, float("nan"), 2.0], 1),
        lambda: cost.break_even(cost.StepCost(1.0, 0.1), 5, cost.StepCost(0.0, 0.0), 5),
        lambda: cost.break_even(cost.StepCost(float("nan"), 0.1), 5, cost.StepCost(1.0, 0.1), 5),
        lambda: cost.replay_gain(64, 128, 0),
    ],
)
def test_bad_cost_arguments_are_refused(call) -> None:
    refused(ParameterError, r"give|must", call)


# --- traffic and arithmetic ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "n", "h"), [(64, 128, 0), (80, 128, 7), (37, 5, 3)])
def test_traffic_is_the_articles_closed_form(d: int, n: int, h: int) -> None:
    assert cost.plain_traffic_bytes(d, n) == 8 * d * n + 2 * (d + 2 * n + 1)
    assert cost.replay_traffic_bytes(d, n, h) == 4 * d * n + 2 * h * (d + n + 1) + 2 * (d + 2 * n + 1) + 2 * (d + n + 1)


def test_traffic_is_the_sum_of_the_arrays_that_a_step_touches() -> None:
    """Second derivation: allocate them and count."""
    d, n, h = 64, 128, 5
    state, token = np.zeros((d, n), np.float32), [np.zeros(k, np.float16) for k in (d, n, n, 1)]
    ring = [np.zeros((h, k), np.float16) for k in (d, n, 1)]
    append = [np.zeros(k, np.float16) for k in (d, n, 1)]
    read = sum(a.nbytes for a in token)
    assert cost.plain_traffic_bytes(d, n) == 2 * state.nbytes + read
    assert cost.replay_traffic_bytes(d, n, h) == state.nbytes + read + sum(a.nbytes for a in ring + append)
    assert cost.flush_traffic_bytes(d, n, h) == 2 * state.nbytes + read + sum(a.nbytes for a in ring)


def test_a_buffer_of_one_is_plain_decoding() -> None:
    assert cost.replay_gain(64, 128, 1) == 1.0


def test_traffic_allows_no_more_than_the_known_gains() -> None:
    """One head with its own B and C reads more ring than heads that share a group: below 1.74 at 8 and 1.82 at 16."""
    gains = {period: cost.replay_gain(64, 128, period) for period in (2, 8, 16, 64, 256)}
    assert 1.5 < gains[8] < 1.74
    assert 1.5 < gains[16] < 1.82
    assert gains[256] < gains[16]  # a long ring costs more than the writes it saves


def count_flops(d: int, n: int, pairs: int, route: str) -> int:
    """Multiplications and additions of each route, counted product by product."""
    if route == "outer":
        build = pairs * d * n * 2
        return build + d * n * 2
    checkpoint = d * n * 2
    inner = pairs * n * 2
    scale = pairs * d * 2
    return checkpoint + inner + scale


@pytest.mark.parametrize(("d", "n", "h"), [(128, 128, 0), (64, 128, 15), (3, 5, 2)])
def test_flops_of_both_routes(d: int, n: int, h: int) -> None:
    assert cost.outer_route_flops(d, n, h) == count_flops(d, n, h + 1, "outer")
    assert cost.inner_route_flops(d, n, h) == count_flops(d, n, h + 1, "inner")
    assert cost.speculative_inner_flops(d, n, h, 1) == cost.inner_route_flops(d, n, h)


def test_the_history_term_is_64_times_smaller_for_d_and_n_of_128() -> None:
    outer = cost.outer_route_flops(128, 128, 7) - 2 * 128 * 128
    inner = cost.inner_route_flops(128, 128, 7) - 2 * 128 * 128
    assert outer == 64 * inner


# --- the queue -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [0.0, 0.3, 2.0, 9.0])
def test_at_most_is_the_poisson_law(mean: float) -> None:
    for k in range(12):
        assert traffic.at_most(k, mean / 2, 2.0) == pytest.approx(stats.poisson.cdf(k, mean), rel=1e-12)


@pytest.mark.parametrize("mean", [40.0, 300.0, 1000.0])
def test_a_crowd_does_not_overflow_the_poisson_law(mean: float) -> None:
    """Neither lambda^n nor n! nor exp(-lambda) is a float here. A term's exponent is a sum of numbers up to 2 n log n."""
    for k in (int(mean) - 60, int(mean), 2 * int(mean), 2000):
        room = 8 * 2.0**-52 * 2000 * np.log(2000)
        assert traffic.at_most(k, mean / 4, 4.0) == pytest.approx(stats.poisson.cdf(k, mean), rel=room, abs=1e-300)
    assert traffic.at_most(-1, mean, 1.0) == 0.0


def test_the_printed_formula_without_its_sign_is_no_probability() -> None:
    mean = 2.0
    printed = sum(np.exp(mean) * mean**n / np.prod(np.arange(1, n + 1)) for n in range(8))
    assert printed > 1
    assert traffic.at_most(200 // 2, 1.0, mean) == pytest.approx(1.0, rel=1e-12)


PLAIN = Plan(0, 0, 1.0, 0.1)
TABLE = {1: Plan(4, 6, 3.0, 0.2), 2: Plan(2, 6, 2.0, 0.15), 3: PLAIN}


def test_the_best_plan_maximises_tokens_per_time_and_may_be_plain() -> None:
    small = [PLAIN, Plan(1, 4, 2.0, 0.15), Plan(2, 6, 2.4, 0.17)]
    assert traffic.best_plan(1, small) == small[2]
    assert traffic.best_plan(16, [PLAIN, Plan(1, 4, 2.0, 0.25)]) == PLAIN


def test_a_full_queue_is_served_at_once_and_a_lonely_request_after_the_wait() -> None:
    served = traffic.periodic_clearing([0.0, 0.1, 0.2, 5.0], [6, 6, 6, 6], TABLE, capacity=3, wait=1.0)
    assert [(s.start, s.batch) for s in served] == [(0.2, 3), (0.2, 3), (0.2, 3), (6.0, 1)]
    assert served[0].finish == pytest.approx(0.2 + 6 * 0.1)
    assert served[3].finish == pytest.approx(6.0 + 2 * 0.2)
    assert served[3].latency == pytest.approx(1.0 + 0.4)


def event_simulation(arriving: list[float], lengths: list[int], capacity: int, wait: float) -> list[tuple[float, float, int]]:
    """Second derivation: walk the events in time with an explicit queue."""
    waiting: list[int] = []
    done: list[tuple[float, float, int]] = [(0.0, 0.0, 0)] * len(arriving)
    free, coming = 0.0, 0
    while coming < len(arriving) or waiting:
        if not waiting:
            waiting.append(coming)
            coming += 1
        deadline = max(arriving[waiting[0]] + wait, free)
        while coming < len(arriving) and len(waiting) < capacity and arriving[coming] <= deadline:
            waiting.append(coming)
            coming += 1
        now = max(arriving[waiting[-1]], free) if len(waiting) == capacity else deadline
        batch, waiting = waiting, []
        plan = TABLE[len(batch)]
        free = now + ceil(max(lengths[i] for i in batch) / plan.tau) * plan.step_time
        for i in batch:
            done[i] = (now, free, len(batch))
    return done


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rate", [0.5, 2.0, 20.0])
def test_the_queue_equals_an_event_simulation(seed: int, rate: float) -> None:
    arriving = traffic.arrivals(rate, 40, seed)
    lengths = np.random.default_rng(seed).integers(1, 30, 40).tolist()
    served = traffic.periodic_clearing(arriving, lengths, TABLE, capacity=3, wait=0.4)
    assert [(s.start, s.finish, s.batch) for s in served] == event_simulation(arriving, lengths, 3, 0.4)
    assert {s.batch for s in served} <= {1, 2, 3}


def test_arrivals_are_poisson() -> None:
    gaps = np.diff([0.0, *traffic.arrivals(2.0, 4000, 7)])
    assert (
        stats.kstest(gaps, "expon", args=(0, 0.5)).pvalue > 1e-6
    )  # a false alarm once in a million seeds; the seed is fixed
    assert stats.kstest(gaps, "expon", args=(0, 0.55)).pvalue < 1e-6  # a rate 10 % off is seen


def test_percentiles_are_latencies_that_occurred() -> None:
    served = traffic.periodic_clearing([0.0, 0.1, 0.2, 5.0], [6, 6, 6, 6], TABLE, capacity=3, wait=1.0)
    every = sorted(s.latency for s in served)
    assert traffic.latency_percentile(served, 50) == every[1]
    assert traffic.latency_percentile(served, 95) == every[3]
    assert traffic.throughput(served, [6, 6, 6, 6]) == pytest.approx(24 / 6.4)


@pytest.mark.parametrize(
    "call",
    [
        lambda: traffic.at_most(1, -1.0, 1.0),
        lambda: traffic.at_most(1, 1.0, float("inf")),
        lambda: traffic.arrivals(0.0, 3, 0),
        lambda: traffic.best_plan(1, []),
        lambda: Plan(1, 1, 2.0, float("nan")),
        lambda: Plan(1, 1, float("nan"), 0.1),
        lambda: Plan(1, 1, 0.0, 0.1),
        lambda: Plan(1, 1, 2.0, 0.0),
        lambda: traffic.periodic_clearing([float("nan")], [1], TABLE, 3, 1.0),
        lambda: traffic.periodic_clearing([0.0], [1], TABLE, 3, float("inf")),
        lambda: traffic.periodic_clearing([0.0], [1], {}, 1, 1.0),
        lambda: traffic.periodic_clearing([1.0, 0.0], [1, 1], TABLE, 3, 1.0),
        lambda: traffic.periodic_clearing([0.0], [0], TABLE, 3, 1.0),
        lambda: traffic.periodic_clearing([0.0], [1], TABLE, 0, 1.0),
    ],
)
def test_bad_traffic_arguments_are_refused(call) -> None:
    refused(ParameterError, r"give|must", call)
