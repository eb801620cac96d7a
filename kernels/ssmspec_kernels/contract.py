"""What the kernels declare of their arithmetic: what they are judged by."""

from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import torch

from ssmspec_ref.contract import NumericContract
from ssmspec_ref.errors import ParameterError, PrecisionError

Products: TypeAlias = Literal["fp32", "bf16"]
"""What the operands of matrix products keep: all of fp32, or what bf16 holds of them, rounded to nearest. Sums are fp32."""

# 3 ulp: NumPy's exp, which stands for the hardware's in the interpreter, has 2.52, and `functions.log1p` 2.4 by NumPy's
# logarithm; the hardware's functions have less.
CONTRACT = NumericContract(exp="ex2", function_ulp=3.0, softplus_threshold=float("inf"))
"""Everything in fp32; in what the state and the activations are stored, and how a window is evaluated, is said beside."""


def of_products(products: Products, contract: NumericContract = CONTRACT) -> NumericContract:
    """The contract with the operands of its matrix products kept so."""
    return contract if products == "fp32" else replace(contract, dot="bf16")


def rounds(products: Products, io: torch.dtype) -> bool:
    """Whether operands are rounded to bf16.

    Raises: ParameterError (no such products), PrecisionError (bf16 products of activations that bf16 does not hold).
    """
    if products not in get_args(Products):
        raise ParameterError(f"products came as {products!r}; give 'fp32' or 'bf16'")
    if products == "bf16" and io != torch.bfloat16:
        raise PrecisionError(f"products came as 'bf16' for activations in {io}; give bf16 activations, or products 'fp32'")
    return products == "bf16"
