"""Terms and functions of a recurrence that are left out, doubled, exchanged or applied in another order."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ssmspec_ref.contract import UNIT_ROUNDOFF
from ssmspec_ref.shapes import Array

from ...mistakes.operators import at_least, one
from ...suite.called import Arguments
from ...suite.expected import Expected
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
        yield "k were not normalised, but q were", of(l2_norm=False, q=_normalised)
        yield "q were not normalised, but k were", of(l2_norm=False, k=_normalised)
    if {"q", "k", "scale"} <= named.keys():
        yield "q were scaled twice", of(scale=lambda scale, k: 1.0 / k.shape[-1] if scale is None else scale * scale)
    if {"beta", "v"} <= named.keys():
        yield (
            "beta scaled v alone, and not the prediction",
            of(v=lambda v, beta: beta[..., None] * v, beta=one),
        )  # beta v - S^T k is 1 (v' - S^T k) with v' = beta v
        yield (
            "beta scaled the prediction alone, and not v",
            of(v=lambda v, beta: v / beta[..., None]),
        )  # v - beta S^T k is beta (v' - S^T k) with v' = v / beta
    if {"dt", "dt_limit", "dt_bias", "dt_softplus"} <= named.keys() and named["dt_softplus"].value:
        yield (
            "dt were clamped to dt_limit before softplus, and not after it",
            of(dt=lambda dt, dt_bias, dt_limit: np.clip(dt + bias(dt_bias), *dt_limit), dt_bias=None, dt_limit=(0.0, np.inf)),
        )
        yield (
            "dt_bias were added after softplus, and not before it",
            of(dt=lambda dt, dt_bias: np.logaddexp(0.0, dt) + bias(dt_bias), dt_bias=None, dt_softplus=False),
        )
    if {"z", "D", "x"} <= named.keys() and all(isinstance(named[name].value, np.ndarray) for name in ("z", "D")):
        yield "D x were added after the gate, and not before it", Late(operation, "D", skip)
    if {"u", "bias", "activation"} <= named.keys() and isinstance(named["bias"].value, np.ndarray):
        yield "bias were added after the activation, and not before it", Late(operation, "bias", lambda n: n["bias"].value)
    if {"z"} <= named.keys() and isinstance(named["z"].value, np.ndarray):
        yield "the gate were sigmoid(z) instead of z sigmoid(z)", of(z=_to_sigmoid)
        yield "the gate were relu(z) instead of z sigmoid(z)", of(z=_to_relu)
    if {"g"} <= named.keys() and named["g"].axes[:1] == ("b",) and isinstance(named["g"].value, np.ndarray):
        for least in CLAMPS:
            yield f"the log decay were at least {least:g}", of(g=at_least(least))


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


def _normalised(own: Array, eps: float) -> Array:
    return np.asarray(own / np.sqrt((own**2).sum(axis=-1, keepdims=True) + eps))


def _to_sigmoid(z: Array) -> Array:
    """A number whose SiLU is sigmoid(z)."""
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
