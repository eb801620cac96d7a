"""Up to how many rows the kernels for few rows are faster, and where a norm is computed by the projection after it."""

from torch import Tensor

from ssmspec_kernels.linear.linear_added import WIDE

FEW = 32
"""Up to this many rows `linear_rows` is faster: for 16, 24, 32 rows a layer of Mamba2-2.7B takes 26.0, 28.7, 28.9 us on an
H200; cuBLAS and a separate norm take 26.9, 28.3, 28.6, so a plain step of 32 rows takes 0.96 of their time. For 64 rows
cuBLAS takes 0.7 of the time."""


def folds(x: Tensor, bitwise: bool) -> bool:
    """Whether the projection computes the norm before it: for the rows of `linear_rows`, in types that cannot overflow."""
    return (bitwise or x.numel() <= FEW * x.shape[-1]) and x.dtype in WIDE
