"""Scalar functions shared by the kernels, in fp32, accurate to a few units of the last place over the whole range."""

import triton
import triton.language as tl


@triton.jit
def softplus(x):
    """log(1 + exp(x)).

    log1p(e) = e log(w) / (w - 1), w = 1 + e rounded: the rounding of w enters the quotient twice and cancels, so that small
    results keep their relative accuracy (Kahan). log(1 + e) alone is 0 below x = -16.6 and wrong in its last bits far above.
    """
    e = tl.exp(-tl.abs(x))
    w = 1.0 + e
    log1p = tl.where(w == 1.0, e, tl.log(w) * (e / (w - 1.0)))
    return tl.maximum(x, 0.0) + log1p


@triton.jit
def silu(x):
    """x / (1 + exp(-x)); exp overflows to inf for very negative x, and x / inf is 0, as it should be."""
    return x / (1.0 + tl.exp(-x))


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)); 0 where exp overflows."""
    return 1.0 / (1.0 + tl.exp(-x))
