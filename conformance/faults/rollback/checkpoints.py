"""A state in a narrower format than is declared, under contracts whose bounds are wide enough to hide it."""

from typing import Any

import numpy as np

from ssmspec_ref import ssd
from ssmspec_ref.contract import Adapter, NumericContract
from ssmspec_ref.shapes import Array

from ...adapters.reference_parts.windows import RING, Bare
from ...judge.draw import stored
from ..recurrences.arithmetic import rounded
from ..single import EVERYTHING, Wrong, adapter_of
from .windows import LIMITS

PRODUCTS = NumericContract(order="output_only", dot="bf16")
"""Matrix products of operands in bf16 are declared, which is what a kernel of windows may do."""
NARROW = NumericContract(accumulate="bf16", function_ulp=3)
"""Arithmetic in bf16 is declared, and a state in fp32."""


class NarrowBehindProducts(Bare):
    """The checkpoint is kept in bf16; declared is fp32, beside products in bf16 whose error hides it. ReplaySSM."""

    def __init__(self, S: Array, params: Any) -> None:
        super().__init__(RING, S, params)

    def verify(self, window: Any, parents: Any = None) -> Array:
        return super().verify(window, parents).astype(np.float32)

    def state(self) -> Array:
        return stored(super().state(), "bf16").astype(np.float32)


def half_precision_state(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    """The state is stored in fp16; declared is fp32, beside arithmetic in bf16 whose error hides it. Bug class NUMERIC."""
    y, S_next = ssd.scan(S, window, params)
    return rounded(y, stored(S_next, "fp16"))


FAULTS: tuple[Wrong, ...] = (
    (NarrowBehindProducts, "ssd.buffered_verify", "NUMERIC", PRODUCTS, LIMITS),
    (NarrowBehindProducts, "delta.buffered_verify", "NUMERIC", PRODUCTS, LIMITS),
    (half_precision_state, "ssd.scan", "NUMERIC", NARROW, EVERYTHING),
)
"""Each with its operation, its bug class, what it declares, and the windows that it takes."""


def adapter() -> Adapter:
    return adapter_of("checkpoints", FAULTS)
