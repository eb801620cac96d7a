"""The numeric contract of the kernels: what their tests allow."""

from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import torch

from ssmspec_ref.contract import NumericContract
from ssmspec_ref.errors import ParameterError, PrecisionError

Products: TypeAlias = Literal["fp32", "bf16"]
"""Precision of matrix product operands: all of fp32, or rounded to nearest bf16. Sums are fp32."""

# 3 ulp: in the interpreter NumPy's exp, which replaces the hardware's, has 2.52, and `functions.log1p` with NumPy's logarithm
# 2.4; the hardware's functions have less.
CONTRACT = NumericContract(exp="ex2", function_ulp=3.0, softplus_threshold=float("inf"))
"""Everything in fp32; the storage of state and activations, and how a window is evaluated, are declared separately."""


def of_products(products: Products, contract: NumericContract = CONTRACT) -> NumericContract:
    """The contract for matrix products with operands of this precision."""
    return contract if products == "fp32" else replace(contract, dot="bf16")


def rounds(products: Products, io: torch.dtype) -> bool:
    """Whether operands are rounded to bf16.

    Raises: ParameterError (unknown products), PrecisionError (bf16 products of activations that are not bf16).
    """
    if products not in get_args(Products):
        raise ParameterError(f"products is {products!r}; give 'fp32' or 'bf16'")
    if products == "bf16" and io != torch.bfloat16:
        raise PrecisionError(f"products is 'bf16' for activations in {io}; give bf16 activations, or products 'fp32'")
    return products == "bf16"
