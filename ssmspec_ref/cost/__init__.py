"""What a window costs and when speculation pays off: fits, break-even, and the traffic and arithmetic of a decode step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import ParameterError


@dataclass(frozen=True)
class StepCost:
    """The time of a target step over N tokens, t(N) = quadratic N^2 + linear N + fixed, and the time of its drafting.

    Units: those of the measurements (for example ms), the same for all.
    Source: STree, section 4: t = k N + C for a recurrent target, t = a N^2 + b N + c with attention. It omits drafting.
    """

    fixed: float
    linear: float
    quadratic: float = 0.0
    drafting: float = 0.0

    def __call__(self, tokens: int) -> float:
        return self.quadratic * tokens**2 + self.linear * tokens + self.fixed + self.drafting


def fit(tokens: Sequence[int], times: Sequence[float], degree: int) -> StepCost:
    """The least-squares fit of degree 1 (recurrent target) or 2 (hybrid).

    Raises: ParameterError (another degree, too few different sizes to fit it, or a time that is not finite).
    Source: STree, section 4: the models of run time in equations 7 and 8.
    """
    if degree not in (1, 2) or len(set(tokens)) <= degree or len(tokens) != len(times):
        raise ParameterError(
            f"there are {len(times)} times at sizes {sorted(set(tokens))} for degree {degree}; "
            "give degree 1 or 2, one time for each size, "
            "and more different sizes than the degree"
        )
    if not np.all(np.isfinite(times)):
        raise ParameterError(f"times are {list(times)}; they must be finite numbers")
    *quadratic, linear, fixed = np.polyfit(tokens, times, degree)
    return StepCost(float(fixed), float(linear), float(quadratic[0]) if quadratic else 0.0)


def break_even(cost: StepCost, tokens: int, base: StepCost, base_tokens: int) -> float:
    """The ratio of tokens per step above which `cost` at `tokens` beats `base` at `base_tokens`.

    tau / tau_base >= (t(N) + d) / (t_base(N_base) + d_base)

    Raises: ParameterError unless both times are positive.
    Source: STree, equations 7 and 8, adding the drafting time d of both sides, which it omits.
    """
    time, base_time = cost(tokens), base(base_tokens)
    if not (time > 0 and base_time > 0):
        raise ParameterError(f"the times of the windows are {time} and {base_time}; give models with positive times")
    return time / base_time


def speedup(tau: float, cost: float, plain: float) -> float:
    """Tokens per unit of time relative to plain decoding: tau * plain / cost. tau is the tokens emitted per window, with
    bonus.

    Raises: ParameterError for tau below 1, or a time that is not positive.
    Source: STree, section 4 (wall time is proportional to t / tau).
    """
    if not (tau >= 1 and cost > 0 and plain > 0):
        raise ParameterError(f"tau, cost, plain are {tau}, {cost}, {plain}; give tau >= 1 and positive times")
    return tau * plain / cost


def plain_traffic_bytes(p: int, n: int, state_bytes: int = 4, io_bytes: int = 2) -> int:
    """Bytes that one head moves in a plain decode step: read and write the state, read x, B, C and dt.

    2 state p n + io (p + 2 n + 1); with 4 and 2 bytes, 8 p n + 2 (p + 2 n + 1).

    Source: ReplaySSM ("the memory traffic per head"); its d and n are p and n here. It does not count the output.
    """
    return 2 * state_bytes * p * n + io_bytes * (p + 2 * n + 1)


def replay_traffic_bytes(p: int, n: int, history: int, state_bytes: int = 4, io_bytes: int = 2) -> int:
    """Bytes that one head moves in a buffered step without a flush, with `history` inputs in the ring.

    state p n + io h (p + n + 1) + io (p + 2 n + 1) + io (p + n + 1): checkpoint, ring, the token, its append.

    Source: ReplaySSM.
    """
    ring_row = io_bytes * (p + n + 1)
    return state_bytes * p * n + history * ring_row + io_bytes * (p + 2 * n + 1) + ring_row


def flush_traffic_bytes(p: int, n: int, history: int, state_bytes: int = 4, io_bytes: int = 2) -> int:
    """Bytes of a buffered step with a flush: the checkpoint is written too, and the token is folded in instead of appended.

    2 state p n + io h (p + n + 1) + io (p + 2 n + 1): checkpoint twice, ring, the token.

    Source: ours; ReplaySSM says in words that a flush writes the state. Its algorithm 2 appends the token before it flushes;
    its published kernel does not.
    """
    return 2 * state_bytes * p * n + io_bytes * (history * (p + n + 1) + p + 2 * n + 1)


def replay_gain(p: int, n: int, period: int, state_bytes: int = 4, io_bytes: int = 2) -> float:
    """Plain traffic divided by buffered traffic, averaged over a cycle of `period` tokens with one flush.

    Raises: ParameterError (period below 1).
    Source: the mean of the formulas above over h = 0 .. period - 1.
    """
    if period < 1:
        raise ParameterError(f"period is {period}; it must be at least 1")
    steps = [replay_traffic_bytes(p, n, h, state_bytes, io_bytes) for h in range(period - 1)]
    cycle = sum(steps) + flush_traffic_bytes(p, n, period - 1, state_bytes, io_bytes)
    return period * plain_traffic_bytes(p, n, state_bytes, io_bytes) / cycle


def outer_route_flops(p: int, n: int, history: int) -> int:
    """State-and-output: build the state from h + 1 outer products, then read it: 2 (h + 1) p n + 2 p n.

    Source: ReplaySSM, section on FLOPs, which gives the first term in words; the second is the product y = S C.
    """
    return 2 * (history + 1) * p * n + 2 * p * n


def inner_route_flops(p: int, n: int, history: int) -> int:
    """Output-only: read the checkpoint, then compute h + 1 inner products and scale h + 1 values: 2 p n + 2 (h + 1) (p + n).

    Source: ReplaySSM, as `outer_route_flops`.
    """
    return 2 * p * n + 2 * (history + 1) * (p + n)


def speculative_inner_flops(p: int, n: int, history: int, window: int) -> int:
    """Output-only over a window of T: T reads of the checkpoint, T (h + T) inner products and as many scaled values.

    Source: ReplaySSM ("a quadratic T (T + h) term").
    """
    return 2 * window * p * n + 2 * window * (history + window) * (p + n)
