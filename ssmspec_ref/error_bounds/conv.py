"""Bounds for the causal convolution: y = act(bias + sum_w weight_w M_w), in any order of summation.

The window M holds copies of inputs, so its bound is the error of the inputs: 0 for exact inputs, bit for bit.
"""

import numpy as np

from ..checks import checked
from ..contract import NumericContract
from ..conv import ConvParams
from ..shapes import Ancestors, Array, Channels, ConvState, Mask
from .arithmetic import Approx, sum_of_products
from .functions import silu
from .inputs import Inexact, lift


@checked
def scan(
    M: ConvState,
    u: Channels,
    params: ConvParams,
    contract: NumericContract,
    live: Mask | None = None,
    inexact: Inexact = None,
) -> tuple[Approx, Approx]:
    """Outputs and final window of `conv.scan`, or of `conv.scan_masked` if `live` is given, with their bounds.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    Source: Higham, section 3.1 (inner products), with the bias as one more term.
    """
    keep = np.ones(u.shape[:2], bool) if live is None else live
    i = lift(contract, inexact, params, M=M, u=u)
    pairs = Approx(_windows(M, i.u.value, keep), _windows(i.M.error, i.u.error, keep), contract)
    y = read(pairs, i.weight, i.bias, params.activation)
    return y.where(keep[:, :, None]), pairs[:, -1]


@checked
def tree(
    M: ConvState,
    u: Channels,
    ancestors: Ancestors,
    params: ConvParams,
    contract: NumericContract,
    inexact: Inexact = None,
) -> Approx:
    """The output at every node of `conv_tree.scan` with its bound; windows follow the ancestors. At padding both are 0.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """
    i = lift(contract, inexact, params, M=M, u=u)
    pairs = Approx(_paths(M, u, ancestors), _paths(i.M.error, i.u.error, ancestors), contract)
    y = read(pairs, i.weight, i.bias, params.activation)
    return y.where(np.einsum("btt -> bt", ancestors)[:, :, None])


def read(windows: Approx, weight: Approx, bias: Approx | None, activation: bool) -> Approx:
    """The output for windows (.. c w), rounded to the output format."""
    terms = [("...cw, cw -> ...c", windows, weight)]
    y = sum_of_products(*terms, *([] if bias is None else [("c -> c", bias)]), matmuls=1)
    return (silu(y) if activation else y).store(y.contract.io)


def _windows(M: ConvState, u: Channels, keep: Mask) -> Array:
    """The window after every token, (b t c w); a no-op leaves it unchanged."""
    after = []
    for t in range(u.shape[1]):
        M = np.where(keep[:, t, None, None], np.concatenate([M[:, :, 1:], u[:, t, :, None]], axis=2), M)
        after.append(M)
    return np.stack(after, axis=1)


def _paths(M: ConvState, u: Channels, ancestors: Ancestors) -> Array:
    """The window of every node along its ancestors, (b t c w)."""
    width = M.shape[2]
    ext = np.concatenate([M, u.transpose(0, 2, 1)], axis=2)
    columns = np.stack(
        [[np.concatenate([np.arange(width), width + np.flatnonzero(seen)])[-width:] for seen in row] for row in ancestors]
    )
    return np.take_along_axis(ext[:, None], columns[:, :, None, :], axis=3)
