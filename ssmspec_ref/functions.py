"""The scalar functions of the papers in float64, exact over the whole range."""

import numpy as np

from .shapes import Array


def silu(x: Array) -> Array:
    """x sigmoid(x)."""
    return x * sigmoid(x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow at either end."""
    return np.exp(-np.logaddexp(0.0, -x))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow at either end."""
    return np.logaddexp(0.0, x)
