"""Where values that are not finite come from: a softplus that computes e^x, which is infinite in fp32 above 88.7."""

from collections.abc import Sequence

import numpy as np

from ssmspec_ref.shapes import Array

from .leaves import Leaf, leaves
from .observe import Observation, judged

LARGEST = float(np.log(np.finfo(np.float32).max))
"""The largest x with a finite e^x in fp32."""


def overflow(seen: Sequence[Observation]) -> str:
    """What explains every value that is not finite; "" if nothing does, or all are finite."""
    largest = [_largest(one) for one in seen if any(_infinite(one, number).any() for number in range(len(one.expected)))]
    if not largest or min(largest) <= LARGEST:
        return ""
    return (
        f"every failing case has dt + dt_bias above {LARGEST:.1f}, here {largest[0]:.4g}: as if softplus computed e^x there, "
        f"which overflows in fp32; above softplus_threshold softplus(x) is x"
    )


def _infinite(seen: Observation, number: int) -> Array:
    return judged(seen.expected[number]) & ~np.isfinite(seen.came[number].astype(np.float64))


def _largest(seen: Observation) -> float:
    """The largest argument of the softplus of a case; -inf if it has none."""
    named: dict[str, Leaf] = {leaf.name: leaf for leaf in leaves(seen.case.operation, seen.arguments)}
    if not ({"dt", "dt_softplus"} <= named.keys() and named["dt_softplus"].value):
        return -np.inf
    bias = named["dt_bias"].value if "dt_bias" in named else None
    dt = np.asarray(named["dt"].value, np.float64) + (0.0 if bias is None else np.asarray(bias, np.float64))
    return float(np.max(dt, initial=-np.inf, where=np.isfinite(dt)))
