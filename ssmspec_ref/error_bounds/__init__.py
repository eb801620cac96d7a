"""Running forward-error bounds: how far an implementation of a numeric contract may deviate from the reference, on given
data.

A bound is the reference's recurrence, evaluated on pairs of a value and an error (`arithmetic`). It follows from the contract
(formats, order of evaluation, accuracy of library functions) and the inputs; no constant in it is fitted.

    y, S = error_bounds.ssd.scan(S0, window, params, contract)       # pairs: y.value, y.error
    error_bounds.compare(y_of_a_kernel, y.value, y.error).passed

Two float64 evaluations are compared against the sum of their bounds.
"""

from . import conv, delta, layer, mamba3, mixer, pairs, selective, shortconv, ssd
from .arithmetic import Approx, constant, exact, sum_of_products
from .comparison import Comparison, compare
from .functions import clip, exp, rsqrt, sigmoid, silu, softplus
from .inputs import values
from .norms import attention, gated, l2_norm, linear, norm, rms

__all__ = [
    "Approx",
    "Comparison",
    "attention",
    "clip",
    "compare",
    "constant",
    "conv",
    "delta",
    "exact",
    "exp",
    "gated",
    "l2_norm",
    "layer",
    "linear",
    "mamba3",
    "mixer",
    "norm",
    "pairs",
    "rms",
    "rsqrt",
    "selective",
    "shortconv",
    "sigmoid",
    "silu",
    "softplus",
    "ssd",
    "sum_of_products",
    "values",
]
