"""What an implementation declares, and what may be said of it.

A numeric contract is how an implementation says it computes; the error bound it is held to follows from that and from the
data (`error_bounds`). There are no free tolerances.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

Storage: TypeAlias = Literal["fp64", "fp32", "fp16", "bf16"]
Dot: TypeAlias = Literal["ieee", "tf32x3", "tf32", "fp16", "bf16"]
Order: TypeAlias = Literal["sequential", "chunked", "output_only"]

UNIT_ROUNDOFF: dict[str, float] = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
}
"""u of each format, round to nearest: half the distance from 1 to the next number."""


@dataclass(frozen=True)
class NumericContract:
    """How an implementation computes.

    `state` is how the state is stored between two calls, and after every token where `order` is sequential and the state is
    written each time; `io` how outputs are stored; `accumulate` the arithmetic of everything else; `dot` how the operands of
    a matrix product are rounded before it; `order` the order of evaluation.
    """

    state: Storage = "fp32"
    io: Storage = "fp32"
    accumulate: Storage = "fp32"
    dot: Dot = "ieee"
    order: Order = "sequential"


class Verdict(IntEnum):
    """What may be said of a case; the worst verdict of a group is the group's."""

    PASS = 0
    INAPPLICABLE = 1
    KNOWN_FAILURE = 2
    UNKNOWN = 3
    FAIL = 4
