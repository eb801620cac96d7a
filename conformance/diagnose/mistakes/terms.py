"""Terms and functions of a recurrence that are left out, doubled, exchanged or applied in another order."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ssmspec_ref.contract import UNIT_ROUNDOFF
from ssmspec_ref.shapes import Array

from ...suite.specification import Arguments, Expected
from ..leaves import changed, leaves, unchecked
from .named import EACH, Made, Named, Of, by_name
from .step_sizes import bias, skip

HALVINGS = 60
CLAMPS = (-5.0, -10.0, -20.0, -50.0)
"""Log decays at which implementations clamp."""


def terms(operation: str, named: Named, of: Of) -> Made:
    """Each such mistake that the inputs allow."""
    if {"A"} <= named.keys() and {"t", EACH}.isdisjoint((*named["A"].axes, *named["A"].path)):
        yield "the decay had the other sign, exp(-dt A), and the state grew", of(_growing)
    if {"q", "k", "eps", "l2_norm"} <= named.keys() and named["l2_norm"].value:
        yield "k were not normalised, but q were", of(partial(_half_normalised, "q"))
        yield "q were not normalised, but k were", of(partial(_half_normalised, "k"))
    if {"q", "k", "scale"} <= named.keys():
        yield "q were scaled twice", of(_scaled_twice)
    if {"beta", "v"} <= named.keys():
        yield "beta scaled v alone, and not the prediction", of(_scaled_v)
        yield "beta scaled the prediction alone, and not v", of(_scaled_prediction)
    if {"dt", "dt_limit", "dt_bias", "dt_softplus"} <= named.keys() and named["dt_softplus"].value:
        yield "dt were clamped to dt_limit before softplus, and not after it", of(_clamped_early)
        yield "dt_bias were added after softplus, and not before it", of(_bias_late)
    if {"z", "D", "x"} <= named.keys() and all(isinstance(named[name].value, np.ndarray) for name in ("z", "D")):
        yield "D x were added after the gate, and not before it", Late(operation, "D", skip)
    if {"u", "bias", "activation"} <= named.keys() and isinstance(named["bias"].value, np.ndarray):
        yield "bias were added after the activation, and not before it", Late(operation, "bias", lambda n: n["bias"].value)
    if {"z"} <= named.keys() and isinstance(named["z"].value, np.ndarray):
        yield "the gate were sigmoid(z) instead of z sigmoid(z)", of(_sigmoid)
        yield "the gate were relu(z) instead of z sigmoid(z)", of(_relu)
    if {"g"} <= named.keys() and named["g"].axes[:1] == ("b",) and isinstance(named["g"].value, np.ndarray):
        for least in CLAMPS:
            yield f"the log decay were at least {least:g}", of(partial(_clamped, least))


@dataclass(frozen=True)
class Late:
    """A term that is added to the first output after its last function, not before it: as a change it leaves the term out,
    and `term` is what is added. `leaf` is the input that makes the term."""

    operation: str
    leaf: str
    term: Callable[[Named], Array]

    def __call__(self, arguments: Arguments) -> Arguments:
        return changed(arguments, (by_name(leaves(self.operation, arguments))[self.leaf], lambda v: None))

    def added(self, arguments: Arguments, made: list[Expected]) -> list[Expected]:
        """The outputs without the term, with the term."""
        term, first = self.term(by_name(leaves(self.operation, arguments))), made[0]
        rounding = 4 * UNIT_ROUNDOFF["fp32"] * np.abs(term)
        return [replace(first, value=first.value + term, bound=first.bound + rounding), *made[1:]]


def _growing(arguments: Arguments, named: Named) -> Arguments:
    """Parameters refuse a positive A, so it is put in unchecked."""
    return unchecked(arguments, named["A"], np.negative)


def _half_normalised(which: str, arguments: Arguments, named: Named) -> Arguments:
    def normalised(a: Array) -> Array:
        return a / np.sqrt((a**2).sum(axis=-1, keepdims=True) + named["eps"].value)

    return changed(arguments, (named["l2_norm"], lambda v: False), (named[which], normalised))


def _scaled_twice(arguments: Arguments, named: Named) -> Arguments:
    return changed(arguments, (named["scale"], lambda v: 1.0 / named["k"].value.shape[-1] if v is None else v * v))


def _scaled_v(arguments: Arguments, named: Named) -> Arguments:
    """beta v - S^T k is 1 (v' - S^T k) with v' = beta v."""
    beta = named["beta"].value[..., None]
    return changed(arguments, (named["v"], lambda a: beta * a), (named["beta"], np.ones_like))


def _scaled_prediction(arguments: Arguments, named: Named) -> Arguments:
    """v - beta S^T k is beta (v' - S^T k) with v' = v / beta."""
    beta = named["beta"].value[..., None]
    return changed(arguments, (named["v"], lambda a: a / beta))


def _clamped_early(arguments: Arguments, named: Named) -> Arguments:
    return changed(
        arguments,
        (named["dt"], lambda a: np.clip(a + bias(named), *named["dt_limit"].value)),
        (named["dt_bias"], lambda v: None),
        (named["dt_limit"], lambda v: (0.0, float("inf"))),
    )


def _bias_late(arguments: Arguments, named: Named) -> Arguments:
    return changed(
        arguments,
        (named["dt"], lambda a: np.logaddexp(0.0, a) + bias(named)),
        (named["dt_bias"], lambda v: None),
        (named["dt_softplus"], lambda v: False),
    )


def _sigmoid(arguments: Arguments, named: Named) -> Arguments:
    """z is replaced by a number whose SiLU is sigmoid(z)."""
    return changed(arguments, (named["z"], _to_sigmoid))


def _relu(arguments: Arguments, named: Named) -> Arguments:
    return changed(arguments, (named["z"], _to_relu))


def _clamped(least: float, arguments: Arguments, named: Named) -> Arguments:
    return changed(arguments, (named["g"], lambda a: np.maximum(a, least)))


def _to_sigmoid(z: Array) -> Array:
    return _inverse_silu(1 / (1 + np.exp(-z)))


def _to_relu(z: Array) -> Array:
    return _inverse_silu(np.maximum(z, 0.0))


def _inverse_silu(y: Array) -> Array:
    """The positive x with x sigmoid(x) = y, for y of 0 or more: it lies between y and y + 1."""
    low, high = y, y + 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        less = middle / (1 + np.exp(-middle)) < y
        low, high = np.where(less, middle, low), np.where(less, high, middle)
    return np.where(y > 0, high, 0.0)
