"""Whether a stricter contract than the declared one would hold as well: then the declared one is wider than what is computed.

One field of the contract is narrowed at a time, and the outputs that passed are compared again with that contract's bounds,
for the same inputs. A case says something about a field only if a bound becomes at least `MATTERS` times smaller: a
correct implementation uses a few hundredths to a half of its bound, so a smaller factor would hold for most that compute
just what they declare.

Formats of state, inputs and outputs are not narrowed, because the values themselves must have them; nor is the order.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ssmspec_ref.contract import UNIT_ROUNDOFF, NumericContract

from ..cases import Case
from ..suite.expected import Expected
from ..suite.specification import Specification

MATTERS = 4.0
STRICT = NumericContract()
WIDER: tuple[tuple[str, str, Callable[[NumericContract], bool]], ...] = (
    ("accumulate", "accumulate=fp32", lambda c: UNIT_ROUNDOFF[c.accumulate] > UNIT_ROUNDOFF["fp32"]),
    ("dot", "dot=ieee", lambda c: c.dot != "ieee"),
    ("stored_every_token", "a state stored once a call", lambda c: c.stored_every_token),
    ("ring", "ring as accumulate", lambda c: c.ring is not None and UNIT_ROUNDOFF[c.ring] > UNIT_ROUNDOFF[c.accumulate]),
    ("function_ulp", f"ulp={STRICT.function_ulp:g}", lambda c: c.function_ulp > STRICT.function_ulp),
    ("exp", "exp=libm", lambda c: c.exp != "libm"),
    ("softplus", "softplus=log1p", lambda c: c.softplus != "log1p"),
    ("approximations", "functions without an absolute error", lambda c: bool(c.approximations)),
    ("softplus_threshold", "softplus above 20 is x", lambda c: c.softplus_threshold < STRICT.softplus_threshold),
)
"""Fields that widen a bound, what is said of each once it is narrowed, and which contracts have it wide."""


def candidates(contract: NumericContract) -> Iterator[tuple[str, NumericContract]]:
    """The contract with one field as in `STRICT`, and what is said of it."""
    for field, said, wide in WIDER:
        if wide(contract):
            yield said, replace(contract, **{field: getattr(STRICT, field)})


def asked(specification: Specification, case: Case) -> bool:
    """Whether a case is compared with stricter contracts, which takes the time of their bounds: a case of mixed options, or
    the plain one of a family."""
    plain = {**specification.base} == {**case.sizes} and specification.defaults | {**specification.fixed} == {**case.options}
    return case.seed > 0 or plain


def matters(declared: list[Expected], strict: list[Expected]) -> bool:
    """Whether a bound is at least `MATTERS` times smaller anywhere that is compared."""
    return any(
        bool(np.any((wide.bound >= MATTERS * narrow.bound) & (wide.bound > 0) & _compared(wide)))
        for wide, narrow in zip(declared, strict, strict=True)
    )


def _compared(want: Expected) -> np.ndarray:
    return np.broadcast_to(np.True_ if want.judged is None else want.judged, want.bound.shape)
