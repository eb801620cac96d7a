"""A state in a narrower format than is declared, under contracts whose bounds are wide enough to hide it."""

import numpy as np

from ssmspec_ref.contract import NumericContract

from ...judge.draw import stored
from ...mistakes.mistake import after
from ...mistakes.operators import rounded_to
from ..fault import planted
from ..windows import Ring, verifies
from .windows import LIMITS

PRODUCTS = NumericContract(order="output_only", dot="bf16")
"""Matrix products of operands in bf16 are declared, which is what a kernel of windows may do."""
NARROW = NumericContract(accumulate="bf16", function_ulp=3)
"""Arithmetic in bf16 is declared, and a state in fp32."""
NarrowBehindProducts = verifies(
    "NarrowBehindProducts",
    "The checkpoint is kept in bf16; declared is fp32, beside products in bf16 whose error hides it. ReplaySSM.",
    Ring,
    y=lambda y: y.astype(np.float32),
    state=lambda state: stored(state, "bf16").astype(np.float32),
)
FAULTS = planted(
    (NarrowBehindProducts, "ssd.buffered_verify", "NUMERIC", PRODUCTS, LIMITS),
    (NarrowBehindProducts, "delta.buffered_verify", "NUMERIC", PRODUCTS, LIMITS),
    (
        after(
            "half_precision_state",
            "The state is stored in fp16; declared is fp32, beside arithmetic in bf16 whose error hides it. Bug class "
            "NUMERIC.",
            S_next=rounded_to("fp16"),
        ),
        "ssd.scan",
        "NUMERIC",
        NARROW,
    ),
)
