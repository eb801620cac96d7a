"""Scalar functions shared by the kernels, in fp32, accurate to a few units of the last place over the whole range."""

import triton
import triton.language as tl


@triton.jit
def softplus(x):
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))."""
    return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))


@triton.jit
def log1p(e):
    """log(1 + e) = log(w) + log(1 + (e - (w - 1)) / w) for e in [0, 1], w = 1 + e rounded.

    The error of rounding w, e - (w - 1), is exact, and at most 2^-24; it is added directly, in place of the second logarithm.
    So small results keep their relative accuracy: log(w) alone is 0 for e <= 2^-24, and inaccurate far above.

    In units of
    2^-23 of the result, of which the contract allows 3: log(w) has an error of 1 (1 ulp, CUDA C++ Programming Guide), the
    replaced logarithm 0.5, the sum 0.5. Where w = 1 + 2^-23 the second error counts twice, and the sum is exact. Measured
    over every e: 1.1 with CUDA's logarithm, which Triton calls; 2.4 with NumPy's, which replaces it in the interpreter.
    """
    w = 1.0 + e
    return tl.log(w) + (e - (w - 1.0))


@triton.jit
def silu(x):
    """x / (1 + exp(-x)); exp overflows to inf for very negative x, and x / inf is 0, as it should be."""
    return x / (1.0 + tl.exp(-x))


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)); 0 where exp overflows."""
    return 1.0 / (1.0 + tl.exp(-x))
