"""Step sizes dt that the decay and the input of a recurrence do not share; decays of a tree summed over the wrong nodes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ssmspec_ref import tree
from ssmspec_ref.contract import UNIT_ROUNDOFF
from ssmspec_ref.shapes import Array

from ...mistakes.operators import of_rows
from ...suite.called import Arguments
from ...suite.expected import Expected
from ..leaves import changed, leaves
from .named import Made, Named, by_name


@dataclass(frozen=True)
class Steps:
    """The decay takes one step size and the input another: dt is that of the decay, and x makes up for it. D and z are left
    out, and applied afterwards to x as it was."""

    operation: str
    decays: Callable[[Named], Array]
    inputs: Callable[[Named], Array]

    def __call__(self, arguments: Arguments) -> Arguments:
        named = by_name(leaves(self.operation, arguments))
        decays, inputs = self.decays(named), self.inputs(named)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(decays == 0, 0.0, inputs / decays)
        ratio = of_rows(ratio, named["x"].value)
        left_out = [(named[name], lambda v: None) for name in ("dt_bias", "D", "z") if name in named]
        limit = [(named["dt_limit"], lambda v: (0.0, float("inf")))] if "dt_limit" in named else []
        exact = (named["dt"], lambda a: decays), (named["dt_softplus"], lambda v: False), (named["x"], lambda a: a * ratio)
        return changed(arguments, *exact, *left_out, *limit)

    def added(self, arguments: Arguments, made: list[Expected]) -> list[Expected]:
        """The outputs with D x and the gate."""
        named, first = by_name(leaves(self.operation, arguments)), made[0]
        D, z = (named[name].value if name in named else None for name in ("D", "z"))
        through = 0.0 if D is None else skip(named)
        gate = 1.0 if z is None else z / (1 + np.exp(-z))
        bound = (first.bound + 8 * UNIT_ROUNDOFF["fp32"] * np.abs(through)) * np.abs(gate)
        return [replace(first, value=(first.value + through) * gate, bound=bound), *made[1:]]


PACKED = "the decay between two nodes of a path were summed over all nodes from one to the other, not over the path"


def step_sizes(operation: str, named: Named) -> Made:
    """Step sizes that the decay and the input do not share."""
    if {"dt_limit"} <= named.keys() and named["dt_limit"].value != (0.0, float("inf")):
        yield "the decay took dt before dt_limit, and the input after it", Steps(operation, _unclamped, step_taken)
        yield "the input took dt before dt_limit, and the decay after it", Steps(operation, step_taken, _unclamped)
    if isinstance(named["dt_bias"].value, np.ndarray):
        yield "the decay took dt without dt_bias", Steps(operation, _unbiased, step_taken)
        yield "the input took dt without dt_bias", Steps(operation, step_taken, _unbiased)
    if named["dt_softplus"].value:
        yield "the input took dt before softplus, and the decay after it", Steps(operation, step_taken, _raw)
    if {"ancestors"} <= named.keys():
        yield PACKED, Steps(operation, _packed_steps, step_taken)


def step_taken(named: Named) -> Array:
    """dt after bias, softplus and limits."""
    limit = named.get("dt_limit")
    return _unclamped(named) if limit is None else np.clip(_unclamped(named), *limit.value)


def _raw(named: Named) -> Array:
    made: Array = named["dt"].value + bias(named["dt_bias"].value)
    return made


def _unclamped(named: Named) -> Array:
    return np.logaddexp(0.0, _raw(named)) if named["dt_softplus"].value else _raw(named)


def _unbiased(named: Named) -> Array:
    dt, limit = named["dt"].value, named.get("dt_limit")
    step = np.logaddexp(0.0, dt) if named["dt_softplus"].value else dt
    return step if limit is None else np.clip(step, *limit.value)


def _packed_steps(named: Named) -> Array:
    return packed(step_taken(named), named["ancestors"].value)


def packed(each: Array, seen: Array) -> Array:
    """Of each node the sum over the nodes after its parent up to itself, so that sums along a path are those of all nodes."""
    parents = tree.parents(seen)
    total = np.cumsum(np.where(of_rows(tree.live(seen), each), each, 0.0), axis=1)
    before = total[np.arange(len(each))[:, None], np.maximum(parents, 0)]
    made: Array = total - np.where(of_rows(parents >= 0, each), before, 0.0)
    return made


def skip(named: Named) -> Array:
    """D x, with D of each head, of each channel of a head, or of each channel."""
    D, x = named["D"].value, named["x"].value
    whole: Array = x * (D[:, None] if "h" in named["x"].axes and D.ndim == 1 else D)
    return whole


def bias(dt_bias: Any) -> Any:
    return 0.0 if dt_bias is None else dt_bias
