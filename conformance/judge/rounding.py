"""The laws of stochastic rounding of a state: two neighbours only, no bias, a fresh draw for every element and call.

The operation is called again and again with tokens that differ, each time with the state that the call before returned:
`CALLS` calls, 2,000 for a single token. What each state was before it was stored follows from the reference, applied to the
state that came before it: x in steps of the format, between `down` and `up`, with the share f = (x - down) / (up - down). An
element went up (X = 1) or down (X = 0), and r = X - f.

neighbours   no element lies beyond its two neighbours
bias         sum r, sum r sign(x), sum r (2 f - 1): up, away from zero, or as if to the nearest number             (1)
fresh        sum r_i r_j over disjoint pairs of elements at a distance of 1, 2, 4 .. along each axis, calls included   (2)

If the numbers are fresh, the terms have the mean 0 given all draws before, and stay within 1, so that `random_sums.limit` (3)
holds; a false alarm is that of a whole run of calls. The reference is exact and the implementation is not: the part of f that
its arithmetic may move is added to (3), and elements of which it may move more than `BLURRED` are left out.

Power: a bias of all probabilities by delta is seen with a probability of 0.999 if delta n exceeds (3) by 3.1 sqrt(V), n the
number of roundings; V is at most n / 4, and about n / 6. With 2,000 calls of 240 elements this is delta = 0.006 of a step.
Numbers that two elements share give E r_i r_j of up to 1/6, 1/12 if their shares are unlike: seen from 4,000 pairs.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import state_format
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.error_bounds.stored_state import scale_error
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

from ..cases import Case
from ..suite.called import Arguments, weights
from ..suite.expected import Expected
from ..suite.specification import Specification
from .bitwise import taken
from .random_sums import limit, pairs

CALLS = {"step": 2000, "scan": 100, "scan_masked": 100}
"""Calls of an operation by its last name; others are compared with their bounds only."""
ROWS = 4
"""Rows of every call, at least: those of the case, again and again."""
INPUTS = 8
"""Different tokens, which come in turn."""
BLURRED, EDGE = 0.1, 0.02
CLOSE = 1e-3
"""How far from a neighbour an element may lie, in steps, beyond what the arithmetic may move it."""

APART = {"calls": "two calls", "b": "two rows (slots)"}

Found = tuple[float, str]
"""A sum as a share of its limit, and what is said of it beyond 1; the largest is reported."""
Call = Callable[[Arguments], tuple[Any, ...] | None]


def asked(specification: Specification, case: Case, contract: NumericContract) -> bool:
    """Whether a case is tested by the laws: the plain one of the first family, where a call stores the state once."""
    name = case.operation.partition(".")[2]
    if contract.state_rounding != "stochastic" or name not in CALLS or case.seed > 0:
        return False
    plain = {**specification.base} == {**case.sizes} and specification.defaults | {**specification.fixed} == {**case.options}
    once = name == "step" or not contract.stored_every_token
    return plain and once and case.family == specification.families[0]


def broken(specification: Specification, case: Case, contract: NumericContract, call: Call) -> str:
    """What breaks a law first; "" if all hold."""
    name = case.operation.partition(".")[2]
    drawn = [specification.draw(replace(case, seed=1000 + k), contract) for k in range(INPUTS)]
    index = np.arange(max(ROWS, case.sizes["b"])) % case.sizes["b"]
    inputs = [
        taken(tuple(old if weights(old) else new for old, new in zip(drawn[0], other, strict=True)), index) for other in drawn
    ]
    S, before, after = inputs[0][0], [], []
    for turn in range(CALLS[name]):
        came = call((S, *inputs[turn % INPUTS][1:]))
        if came is None:
            return "one of the calls that test stochastic rounding gave no output"
        before.append(S)
        S = np.asarray(came[-1], dtype=np.float64)
        after.append(S)
    exact = unstored(specification, contract, inputs, before)
    return laws(exact, np.stack(after), contract)


def laws(exact: Expected, after: Array, contract: NumericContract) -> str:
    """The laws for states `after` (calls, rows, ..), of which `exact` has the values before they were stored."""
    axis = state_format.axis_of(exact.axes)
    v, e = exact.value.reshape(after.shape), exact.bound.reshape(after.shape)
    s = state_format.scales(v, contract, axis)
    eta, unknown = scale_error(v, e, contract, axis)
    x = state_format.within(v / s, contract.state)
    down, up = state_format.neighbours(x, contract.state)
    gap = np.where(up > down, up - down, state_format.step(x, contract.state))
    blur = (e + eta * (np.abs(v) + e)) / (s * gap)
    f, at = (x - down) / gap, (after / s - down) / gap
    beyond = ~unknown & ((at < -CLOSE - blur) | (at > np.where(up > down, 1.0, 0.0) + CLOSE + blur)) & (blur < BLURRED)
    beyond &= np.minimum(np.abs(x - down), np.abs(up - x)) > blur * gap
    if beyond.any():
        where = tuple(int(i) for i in np.argwhere(beyond)[0])
        return (
            f"stochastic rounding must give one of the two neighbours of a state, but in call {where[0] + 1} {v[where]:.9g} "
            f"became {after[where]:.9g}, not {s[where] * down[where]:.9g} or {s[where] * up[where]:.9g}"
        )
    counted = ~unknown & (blur < BLURRED) & (f > EDGE + blur) & (f < 1 - EDGE - blur)
    if not counted.any():
        return ""
    r = np.where(counted, (at > 0.5) - f, 0.0)
    variance = np.where(counted, f * (1 - f), 0.0)
    blur = np.where(counted, blur, 0.0)
    worst, said = max(
        _biased(r, variance, blur, 2 * f - 1, ("to the nearest number", "away from the nearest number")),
        _biased(r, variance, blur, np.ones(r.shape), ("up", "down")),
        _biased(r, variance, blur, np.sign(x), ("away from zero", "toward zero")),
        *_shared(r, variance, blur, exact.axes),
    )
    return said if worst > 1 else ""


def _biased(r: Array, variance: Array, blur: Array, weight: Array, ways: tuple[str, str]) -> Found:
    """One of the sums (1), and the words for it above or below 0."""
    total, slack = float(np.sum(r * weight)), float(np.sum(blur * np.abs(weight)))
    most = limit(float(np.sum(variance * weight**2))) + slack
    count = f"{np.sum(variance > 0)} roundings lean {ways[total < 0]} by {abs(total):.0f} steps in total"
    return abs(total) / most, f"stochastic rounding is biased: {count}; unbiased ones stay within {most:.0f}"


def _shared(r: Array, variance: Array, blur: Array, axes: str) -> Iterator[Found]:
    """The sums (2): along the calls, the rows and every axis of the state."""
    for axis, name in enumerate(["calls", *axes.split()]):
        for distance in 2 ** np.arange(max(int(r.shape[axis]).bit_length() - 1, 0)):
            first, second = pairs(r.shape[axis], int(distance))
            a, b = np.take(r, first, axis), np.take(r, second, axis)
            moved = np.sum(np.abs(a) * np.take(blur, second, axis) + np.abs(b) * np.take(blur, first, axis))
            most = limit(float(np.sum(a**2 * np.take(variance, second, axis)))) + float(moved)
            total, what = float(np.sum(a * b)), APART.get(name, f"two elements apart in {name}")
            said = (
                f"the products of roundings of {what} at a distance of {distance} add up to {total:.0f}; "
                f"those of independent ones stay within {most:.0f}"
            )
            yield abs(total) / most, f"stochastic rounding reuses random numbers: {said}"


def unstored(
    specification: Specification, contract: NumericContract, inputs: list[Arguments], before: list[Array]
) -> Expected:
    """The states of all calls before they were stored, from one call of the reference with all rows one after the other."""
    free = replace(contract, state=contract.accumulate, state_scale=None, state_rounding="nearest", stored_every_token=False)
    shown = [inputs[turn % INPUTS] for turn in range(len(before))]
    rest = [_stacked([given[k] for given in shown]) for k in range(1, len(inputs[0]))]
    return specification.expected((np.concatenate(before), *rest), free, None)[-1]


def _stacked(values: list[Any]) -> Any:
    """One argument of all calls; weights are the same in all."""
    return values[0] if weights(values[0]) else each(lambda *a: np.concatenate(a), *values)
