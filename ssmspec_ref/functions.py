"""The scalar functions of the papers in float64, accurate to 1e-15; below x = -708 exp(x) loses digits."""

import numpy as np

from .shapes import Array


def silu(x: Array) -> Array:
    """x sigmoid(x)."""
    return x * sigmoid(x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), computed as exp(x) / (1 + exp(x)) below 0: no overflow, and accurate for small results."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), computed as max(x, 0) + log(1 + exp(-|x|)): no overflow, and accurate for small results."""
    return np.logaddexp(0.0, x)
