"""Whether fewer bits than declared, or too small a range, explain a failure.

A wider contract may allow what the declared one refuses; one field is widened at a time. A field is reported if every
output of every observed case lies within the bounds of the contract so widened, and the worst error takes at least `LEAST`
of them: a bound that is much larger than the error says nothing. For the same reason no error may exceed `ROUNDINGS` of the
narrow format, in units of the largest value.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import UNIT_ROUNDOFF, NumericContract, Order, Storage
from ssmspec_ref.errors import SpecError
from ssmspec_ref.shapes import Array

from ..judge.verdict import expectation
from ..suite.specification import Specification
from .leaves import Leaf, leaves
from .observe import Observation, judged

LARGEST = float(np.log(np.finfo(np.float32).max))
"""The largest x with a finite e^x in fp32."""
LEAST = 1 / 64
TYPICAL = 1 / 1024
"""The share of the wider bounds that the median error of an output takes at least: rounding shows in most values."""
ROUNDINGS = 2
NARROW: tuple[Storage, ...] = ("fp16", "bf16")
FUNCTIONS: tuple[tuple[str, Any, str, float], ...] = (
    ("exp", "ex2", "exp is computed as 2^(x log2 e)", UNIT_ROUNDOFF["fp16"]),
    ("softplus", "log", "softplus is computed as log(1 + exp(x))", np.inf),
    ("dot", "tf32", "operands of products are rounded to tf32", UNIT_ROUNDOFF["fp16"]),
    ("dot", "bf16", "operands of products are rounded to bf16", UNIT_ROUNDOFF["bf16"]),
)
"""Fields, their wider values, what computes so, and the rounding that it makes at most; that of tf32 is that of fp16. Where x
is far below 0, log(1 + exp(x)) is 0, and all of a value is lost."""


ORDERS: dict[Order, str] = {
    "associative": "the scan multiplies decays",
    "chunked": "the decay over several tokens is exp of a sum",
}
"""Orders that a failing implementation may have, and what it then does."""


def wider(specification: Specification, contract: NumericContract, seen: Sequence[Observation]) -> str:
    """The widening with the smallest bounds that allows all results, in words; "" if none does."""
    found = []
    apart = max(map(_apart, seen), default=np.inf)
    for order, (says, changed, rounding) in enumerate(_widened(contract)):
        if not apart <= ROUNDINGS * rounding:
            continue
        shares = [_share(specification, changed, one) for one in seen]
        share = max(worst for worst, _ in shares)
        if LEAST <= share <= 1 and min(typical for _, typical in shares) >= TYPICAL:
            found.append((-share, order, f"it would hold under {_field(contract, changed)}: {says}"))
    return min(found)[2] if found else ""


def other_order(specification: Specification, contract: NumericContract, seen: Sequence[Observation]) -> str:
    """The order of evaluation under which all results would hold, and when to declare it; "" if none is.

    It is a hint: the cases have failed, and a fault may be as small as the difference of two orders.
    """
    if not any(one.case.sizes.get("t", 1) > 1 for one in seen):
        return ""
    for order, when in ORDERS.items():
        if order != contract.order:
            changed = replace(contract, order=order)
            share = max(_share(specification, changed, one)[0] for one in seen)
            if LEAST <= share <= 1:
                return f"holds under {_field(contract, changed)}; declare it if {when}"
    return ""


def _apart(seen: Observation) -> float:
    """The largest error of an observation, in units of the largest value of its output."""
    worst = 0.0
    for number in seen.beyond:
        want, came = seen.expected[number], seen.came[number].astype(np.float64)
        with np.errstate(all="ignore"):
            far = np.abs(came - want.value)[seen.wrong(number)].max() / np.abs(want.value[judged(want)]).max()
        worst = max(worst, float(np.nan_to_num(far, nan=np.inf)))
    return worst


def _widened(contract: NumericContract) -> Iterator[tuple[str, NumericContract, float]]:
    """Contracts with one field that is wider, what an implementation of it does, and how much it rounds."""
    for field, value, says, rounding in FUNCTIONS:
        if getattr(contract, field) == getattr(NumericContract(), field):
            yield says, replace(contract, **{field: value}), rounding
    when = "chunk" if contract.order == "chunked" else "token"
    for narrow in NARROW:
        rounding = UNIT_ROUNDOFF[narrow]
        if contract.state_scale is None and UNIT_ROUNDOFF[narrow] > UNIT_ROUNDOFF[contract.state]:
            changed = replace(contract, state=narrow, stored_every_token=True)
            yield f"the state is rounded to {narrow} after every {when}, or where it is read", changed, rounding
        if UNIT_ROUNDOFF[narrow] > UNIT_ROUNDOFF[contract.accumulate]:
            yield f"something is rounded to {narrow} on the way", replace(contract, accumulate=narrow), rounding
        if UNIT_ROUNDOFF[narrow] > UNIT_ROUNDOFF[contract.io]:
            yield f"outputs are rounded to {narrow}", replace(contract, io=narrow), rounding


def _field(contract: NumericContract, changed: NumericContract) -> str:
    """The first field that differs, as an adapter declares it."""
    name = next(name for name in vars(contract) if getattr(contract, name) != getattr(changed, name))
    return f"{name}={getattr(changed, name)}"


def _share(specification: Specification, contract: NumericContract, seen: Observation) -> tuple[float, float]:
    """The largest error of an observation over its bound under a contract, infinite without a bound; and the largest median
    of one of its wrong outputs."""
    try:
        made = expectation(specification, seen.case, contract, seen.arguments, None)
    except SpecError:
        return np.inf, 0.0
    worst = typical = 0.0
    for number, (want, came) in enumerate(zip(made, seen.came, strict=False)):
        if want.value.shape != came.shape:
            return np.inf, 0.0
        with np.errstate(all="ignore"):
            shares = np.abs(came.astype(np.float64) - want.value)[judged(want)] / want.bound[judged(want)]
        # 0 / 0 is a value that must be equal, and is
        shares = np.where(np.isnan(shares) & np.isfinite(came[judged(want)].astype(np.float64)), 0.0, shares)
        worst = max(worst, float(np.nan_to_num(shares, nan=np.inf).max(initial=0.0)))
        if number in seen.beyond:
            bounded = want.bound[judged(want)] > 0  # slots that no row writes are exact
            typical = max(typical, float(np.median(shares[bounded])) if bounded.any() else 0.0)
    return worst, typical


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
