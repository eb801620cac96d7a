"""The scalar functions of a layer, on pairs.

Each propagates the error of its argument through the function's slope and adds the library function's own error: the relative
r = 2 u function_ulp (`NumericContract`). If exp is an intermediate step, its own error counts as an error of its argument:

exp(x^) (1 + d) = exp(x^ + log(1 + d)),    |log(1 + d)| <= -log(1 - r)                     (1)

so softplus and sigmoid are evaluated at an argument with the error e + (1), with the largest slope in that range.

A function that the contract names with an absolute error D (`NumericContract.approximations`) has D more, wherever x^ may be
in its range. If exp has D, what is made of E = exp(x) or exp(-x) has at most

|1 / (1 + E + D) - 1 / (1 + E)|, |log(1 + E + D) - log(1 + E)| <= D / (1 - D)                (2)
"""

from dataclasses import replace

import numpy as np
from numpy import expm1, log1p

from .. import functions
from ..contract import SMALLEST_NORMAL, NumericContract
from ..shapes import Array
from .arithmetic import Approx, charged, constant, relative_error, unit

MADE_OF_EXP = (-1.0, 1.0)
"""The multiples of x whose exp sigmoid, silu and softplus may take."""


def exp(x: Approx, most: Array | float = np.inf) -> Approx:
    """exp x: |exp(x^) - exp x| <= exp(x) max(expm1(e), 1 - exp(-e)), then r; exp(0) is 1.

    `most` is a known upper limit of the computed argument: 0 for a log decay, whatever its error. If the argument is computed
    as 2^(x log2 e), its error grows by 2 u |x|: the constant and the product are rounded.
    An exp with an absolute error has it at 0 too, unless its range leaves 0 out.
    Source: C standard, F.10.3.1, and PTX manual, ex2.approx, for exp(0) = 1.
    """
    value, argument = np.exp(x.value), _argument(x)
    above = np.where(x.value > most, x.error, np.minimum(x.error, most - x.value))
    carried = value * np.maximum(expm1(above + argument), -expm1(-x.error - argument))
    result = charged(value, carried, relative_error(x.contract), x.contract)
    return _approximated(replace(result, error=np.where((x.value == 0) & (x.error == 0), 0.0, result.error)), "exp", x)


def softplus(x: Approx) -> Approx:
    """log(1 + exp x). Its slope is sigmoid x, largest at x + e.

    exp shifts the argument by (1) of the module; log1p has an error of r of the result, and the sum in max(x, 0) +
    log1p(exp(-|x|)) one of u. Computed as log(1 + exp x), the rounding of the sum and of the logarithm near 1 is absolute, u
    + r (lg2.approx: 2^-22). If the computed x^ is above the threshold, the result is x^, which omits log(1 + exp(-x^)).
    """
    c, r, moved = x.contract, relative_error(x.contract), _moved(x)
    carried = moved * functions.sigmoid(x.value + moved)
    lost = np.logaddexp(0.0, -np.maximum(x.value - x.error, c.softplus_threshold))
    carried = carried + np.where(x.value + x.error > c.softplus_threshold, lost, 0.0)
    carried = carried + (unit(c) + r if c.softplus == "log" else 0.0)
    carried = carried + _of_exp(x, MADE_OF_EXP)
    return _approximated(charged(functions.softplus(x.value), carried, (1 + r) * (1 + unit(c)) - 1, c), "softplus", x)


def sigmoid(x: Approx) -> Approx:
    """1 / (1 + exp(-x)) = s. Its slope is s (1 - s), largest where |x| is smallest.

    exp shifts the argument by (1) of the module; the sum and the division have errors of u and r. If exp(-x) overflows, the
    result is 0 instead of a value below the smallest normal number.
    """
    c, r, moved = x.contract, relative_error(x.contract), _moved(x)
    carried = moved * _logistic_slope(x, moved) + SMALLEST_NORMAL[c.accumulate] + _of_exp(x, MADE_OF_EXP)
    return _approximated(charged(functions.sigmoid(x.value), carried, (1 + r) / (1 - unit(c)) - 1, c), "sigmoid", x)


def silu(x: Approx) -> Approx:
    """x sigmoid(x), or x / (1 + exp(-x)), which has one rounding less.

    Its slope is s + x s (1 - s), never above 1.1: 1.0998 at x = 2.3994. An absolute error of the sigmoid counts x^ times.
    """
    s = functions.sigmoid(x.value + x.error)
    clean = replace(x, error=np.zeros_like(x.error), contract=replace(x.contract, approximations=()))
    result = replace(clean * sigmoid(clean), contract=x.contract)
    slope = np.minimum(1.1, s + x.size * _logistic_slope(x, x.error))
    share = _moved(x) - x.error + 2 * relative_error(x.contract)  # that the function may be wrong by at x^
    named = _absolute(x, "sigmoid") + (1 + share) * _of_exp(x, MADE_OF_EXP)
    error = result.error + x.error * slope * (1 + share) + (1 + unit(x.contract)) * x.size * named
    return _approximated(replace(result, error=error), "silu", x)


def rsqrt(x: Approx) -> Approx:
    """1 / sqrt(x), or a division by sqrt(x), which costs r twice.

    A relative error d of x changes the result by a factor of at most (1 - d)^-1/2; the error is inf for d >= 1.
    """
    share, value = x.error / x.value, 1 / np.sqrt(x.value)
    carried = value * expm1(-0.5 * log1p(-np.minimum(share, 1 - 2.0**-53)))
    return charged(value, np.where(share < 1, carried, np.inf), (1 + relative_error(x.contract)) ** 2 - 1, x.contract)


def tanh(x: Approx) -> Approx:
    """tanh x, of slope at most 1. By 2 sigmoid(2 x) - 1 its own error is absolute, twice that of the sigmoid and of the
    difference: 2 r + 3 u. Its exp is that of 2 x or -2 x."""
    own = 2 * relative_error(x.contract) + 3 * unit(x.contract)
    error = x.error + _argument(x) + own + 2 * (1 + own) * _of_exp(x, (-2.0, 2.0))
    return _approximated(Approx(np.tanh(x.value), np.minimum(error, 2.0), x.contract), "tanh", x)


def cos(x: Approx) -> Approx:
    """cos x, of slope at most 1; its own error is absolute, r: cos.approx has 2^-20.9 within one turn (PTX manual), which
    function_ulp of 4.5 covers."""
    return Approx(np.cos(x.value), np.minimum(x.error + relative_error(x.contract), 2.0), x.contract)


def sin(x: Approx) -> Approx:
    """sin x, as `cos`."""
    return Approx(np.sin(x.value), np.minimum(x.error + relative_error(x.contract), 2.0), x.contract)


def clip(x: Approx, low: float, high: float) -> Approx:
    """min(max(x, low), high). If x is certainly outside the limits, only the rounding of the limit counts."""
    error = x.error
    for limit, outside in ((low, x.value + x.error < low), (high, x.value - x.error > high)):
        if np.isfinite(limit):
            rounding = constant(limit, x.contract).error
            reached = np.abs(x.value - limit) <= x.error + rounding
            error = np.where(outside, rounding, np.where(reached, np.maximum(error, rounding), error))
    return Approx(np.clip(x.value, low, high), error, x.contract)


def approximated(contract: NumericContract, function: str) -> bool:
    """Whether the contract names an absolute error of a function."""
    return any(one.function == function for one in contract.approximations)


def _absolute(x: Approx, function: str, times: float = 1.0) -> Array:
    """The absolute error that the contract names for a function of `times` x, where the computed argument may be in its
    range; the largest of several."""
    found, argument, error = np.zeros(x.value.shape), times * x.value, abs(times) * x.error
    for one in x.contract.approximations:
        if one.function == function:
            within = (argument + error >= one.low) & (argument - error <= one.high)
            found = np.maximum(found, np.where(within, one.error, 0.0))
    return found


def _approximated(result: Approx, function: str, x: Approx) -> Approx:
    """A function's result with the absolute error that the contract names for it."""
    return replace(result, error=result.error + _absolute(x, function)) if x.contract.approximations else result


def _of_exp(x: Approx, multiples: tuple[float, ...]) -> Array:
    """(2) of the module, for an exp of one of these multiples of x."""
    most = np.maximum.reduce([_absolute(x, "exp", times) for times in multiples])
    return most / (1 - most)


def _argument(x: Approx) -> Array:
    """The error of the argument of exp when it is computed as 2^(x log2 e)."""
    u = unit(x.contract)
    return (2 * u + u * u) * x.size if x.contract.exp == "ex2" else np.zeros_like(x.error)


def _moved(x: Approx) -> Array:
    """The largest deviation of the argument from x, from its own error and that of exp (1). From r = 1 on it is unbounded."""
    r = relative_error(x.contract)
    return x.error + _argument(x) + (-log1p(-r) if r < 1 else r)


def _logistic_slope(x: Approx, moved: Array) -> Array:
    """The largest s (1 - s) within this distance of x."""
    nearest = np.maximum(np.abs(x.value) - moved, 0.0)
    return functions.sigmoid(nearest) * functions.sigmoid(-nearest)
