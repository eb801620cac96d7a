"""Arithmetic whose bits do not depend on an element's position or on other rows.

PyTorch's vector loops treat the last few elements of a tensor by different code, its sums choose their order by
shape and stride, and a matrix product its order by the number of rows. With `bitwise`:

    functions  run over blocks of one fixed length, so that every element goes through the same vector code      (1)
    sums       fold the upper half onto the lower, from the next power of two down: zeros at the end change nothing (2)
    products   with weights take each row separately, from its own buffer: one shape, one alignment               (3)

Sums, differences, products, quotients and square roots of elements are rounded as IEEE 754 says, in any position; no
function here fuses a product with a sum.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 1024
"""Elements of a block of (1): a multiple of every vector length, below PyTorch's threshold for using threads."""
OUTPUTS = 8192
"""Rows of weights that are converted at once for logits."""


class Arithmetic:
    """Functions, sums and products, in one fixed order if `bitwise`."""

    def __init__(self, bitwise: bool) -> None:
        self.bitwise = bitwise

    def map(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """function(x), element by element (1)."""
        if not self.bitwise or x.is_cuda:  # a GPU runs the same code for every element
            return function(x)
        flat = functional.pad(x.reshape(-1), (0, -x.numel() % BLOCK))
        done = torch.empty_like(flat)
        for block, to in zip(torch.split(flat, BLOCK), torch.split(done, BLOCK), strict=True):
            to.copy_(function(block.clone()))
        return done[: x.numel()].view(x.shape)

    def exp(self, x: Tensor) -> Tensor:
        return self.map(torch.exp, x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return self.map(torch.sigmoid, x)

    def silu(self, x: Tensor) -> Tensor:
        return x * self.sigmoid(x)

    def softplus(self, x: Tensor) -> Tensor:
        return self.map(functional.softplus, x)

    def gelu(self, x: Tensor) -> Tensor:
        return self.map(functional.gelu, x)

    def turn(self, angle: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine."""
        return self.map(torch.cos, angle), self.map(torch.sin, angle)

    def sum(self, x: Tensor, dim: int = -1) -> Tensor:
        """The sum over one axis (2)."""
        if not self.bitwise:
            return x.sum(dim)
        while (count := x.shape[dim]) > 1:
            half = 1 << (count - 1).bit_length() - 1
            low, above = x.narrow(dim, 0, half), x.narrow(dim, half, count - half)
            if count < 2 * half:  # zeros at the end: written once instead of added one by one
                x = low + 0.0
                x.narrow(dim, 0, count - half).copy_(low.narrow(dim, 0, count - half) + above)
            else:
                x = low + above
        return x.select(dim, 0) if x.shape[dim] else x.sum(dim)

    def product(self, x: Tensor, W: Tensor) -> Tensor:
        """x W^T over the last axis (3)."""
        if not self.bitwise:
            return functional.linear(x, W)
        rows = x.reshape(-1, x.shape[-1])
        done = rows.new_empty((len(rows), W.shape[0]))
        for row, to in zip(rows, done, strict=True):
            to.copy_(torch.mv(W, row.clone()))
        return done.view(*x.shape[:-1], W.shape[0])

    def wide_product(self, x: Tensor, W: Tensor, dtype: torch.dtype) -> Tensor:
        """x W^T in a wider type than the operands'."""
        if x.dtype == dtype == W.dtype:
            return self.product(x, W)
        return torch.cat([self.product(x.to(dtype), part.to(dtype)) for part in torch.split(W, OUTPUTS)], dim=-1)


def exact(x: Tensor) -> torch.dtype:
    """The type of intermediate results inside an operation."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
