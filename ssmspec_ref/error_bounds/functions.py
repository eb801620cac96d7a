"""The scalar functions of a layer on pairs.

Each takes the error of its argument through the function's slope and adds what a library function may be wrong by: the share
r = 2 u function_ulp (`NumericContract`). Where exp is a step on the way, what it is wrong by is an error of its argument too:

exp(x^) (1 + d) = exp(x^ + log(1 + d)),    |log(1 + d)| <= -log(1 - r)                     (1)

so that softplus and sigmoid are taken at an argument moved by e + (1), and their slope where it is largest on the way.
"""

from dataclasses import replace

import numpy as np
from numpy import expm1, log1p

from .. import functions
from ..contract import SMALLEST_NORMAL
from ..shapes import Array
from .arithmetic import Approx, charged, constant, relative_error, unit


def exp(x: Approx, most: Array | float = np.inf) -> Approx:
    """exp x: |exp(x^) - exp x| <= exp(x) max(expm1(e), 1 - exp(-e)), then r; exp(0) is 1.

    `most` is what the computed argument is known not to exceed: 0 for a log decay, whatever it is wrong by. Formed as
    2^(x log2 e) the argument is wrong by 2 u |x| more: the constant and the product are rounded.
    Source: C standard, F.10.3.1, and PTX manual, ex2.approx, for exp(0) = 1.
    """
    value, argument = np.exp(x.value), _argument(x)
    above = np.where(x.value > most, x.error, np.minimum(x.error, most - x.value))
    carried = value * np.maximum(expm1(above + argument), -expm1(-x.error - argument))
    result = charged(value, carried, relative_error(x.contract), x.contract)
    return replace(result, error=np.where((x.value == 0) & (x.error == 0), 0.0, result.error))


def softplus(x: Approx) -> Approx:
    """log(1 + exp x). Its slope is sigmoid x, which is largest at x + e.

    exp moves the argument by (1) of the module; log1p is wrong by r of the result, and the sum in max(x, 0) +
    log1p(exp(-|x|)) by u. Formed as log(1 + exp x), the rounding of the sum and of the logarithm near 1 is absolute, u + r
    (lg2.approx: 2^-22). Where the computed x^ lies above the threshold the result is x^, and log(1 + exp(-x^)) of it is lost.
    """
    c, r, moved = x.contract, relative_error(x.contract), _moved(x)
    carried = moved * functions.sigmoid(x.value + moved)
    lost = np.logaddexp(0.0, -np.maximum(x.value - x.error, c.softplus_threshold))
    carried = carried + np.where(x.value + x.error > c.softplus_threshold, lost, 0.0)
    carried = carried + (unit(c) + r if c.softplus == "log" else 0.0)
    return charged(functions.softplus(x.value), carried, (1 + r) * (1 + unit(c)) - 1, c)


def sigmoid(x: Approx) -> Approx:
    """1 / (1 + exp(-x)) = s. Its slope is s (1 - s), largest where |x| is smallest.

    exp moves the argument by (1) of the module; the sum and the division are wrong by u and r. Where exp(-x) overflows the
    result is 0 instead of less than the smallest normal number.
    """
    c, r, moved = x.contract, relative_error(x.contract), _moved(x)
    carried = moved * _logistic_slope(x, moved) + SMALLEST_NORMAL[c.accumulate]
    return charged(functions.sigmoid(x.value), carried, (1 + r) / (1 - unit(c)) - 1, c)


def silu(x: Approx) -> Approx:
    """x sigmoid(x), or x / (1 + exp(-x)), which rounds once less.

    Its slope is s + x s (1 - s), never above 1.1: 1.0998 at x = 2.3994.
    """
    s = functions.sigmoid(x.value + x.error)
    clean = replace(x, error=np.zeros_like(x.error))
    result = clean * sigmoid(clean)
    slope = np.minimum(1.1, s + x.size * _logistic_slope(x, x.error))
    share = _moved(x) - x.error + 2 * relative_error(x.contract)  # that the function may be wrong by at x^
    return replace(result, error=result.error + x.error * slope * (1 + share))


def rsqrt(x: Approx) -> Approx:
    """1 / sqrt(x), or a division by sqrt(x), which costs r twice.

    x wrong by a share d moves it by at most (1 - d)^-1/2 - 1 of itself; the error is inf for d >= 1.
    """
    share, value = x.error / x.value, 1 / np.sqrt(x.value)
    carried = value * expm1(-0.5 * log1p(-np.minimum(share, 1 - 2.0**-53)))
    return charged(value, np.where(share < 1, carried, np.inf), (1 + relative_error(x.contract)) ** 2 - 1, x.contract)


def clip(x: Approx, low: float, high: float) -> Approx:
    """min(max(x, low), high). Where x surely lies outside, only the rounding of the limit counts."""
    error = x.error
    for limit, outside in ((low, x.value + x.error < low), (high, x.value - x.error > high)):
        if np.isfinite(limit):
            rounding = constant(limit, x.contract).error
            reached = np.abs(x.value - limit) <= x.error + rounding
            error = np.where(outside, rounding, np.where(reached, np.maximum(error, rounding), error))
    return Approx(np.clip(x.value, low, high), error, x.contract)


def _argument(x: Approx) -> Array:
    """How far 2^(x log2 e) moves the argument of exp."""
    u = unit(x.contract)
    return (2 * u + u * u) * x.size if x.contract.exp == "ex2" else np.zeros_like(x.error)


def _moved(x: Approx) -> Array:
    """How far the argument may lie from x by what it, and exp of it (1), are wrong by. From r = 1 on no digit is right."""
    r = relative_error(x.contract)
    return x.error + _argument(x) + (-log1p(-r) if r < 1 else r)


def _logistic_slope(x: Approx, moved: Array) -> Array:
    """The largest s (1 - s) as far from x."""
    nearest = np.maximum(np.abs(x.value) - moved, 0.0)
    return functions.sigmoid(nearest) * functions.sigmoid(-nearest)
