"""The scalar functions of the papers in float64, accurate to 1e-15; below x = -708 exp(x) loses digits."""

import numpy as np
from numpy import einsum

from .rounding import named
from .shapes import Array


@named
def decay(log: Array) -> Array:
    """exp of a log decay, which is at most 0 however it was computed."""
    return np.exp(log)


@named
def silu(x: Array) -> Array:
    """x sigmoid(x)."""
    return x * sigmoid(x)


@named
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), computed as exp(x) / (1 + exp(x)) below 0: no overflow, and accurate for small results."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


@named
def softplus(x: Array) -> Array:
    """log(1 + exp(x)), computed as max(x, 0) + log(1 + exp(-|x|)): no overflow, and accurate for small results."""
    return np.logaddexp(0.0, x)


@named
def l2_normed(x: Array, eps: float) -> Array:
    """x / sqrt(sum x^2 + eps) over the last axis."""
    return x / np.sqrt(einsum("...k, ...k -> ...", x, x) + eps)[..., None]
