"""Bounds for the causal convolution: y = act(bias + sum_w weight_w M_w), in any order of summation.

The window M holds copies of inputs, so its bound is the error of the inputs: 0 for exact inputs, bit for bit.
"""

from typing import Any

import numpy as np

from .. import conv
from ..checks import checked
from ..contract import NumericContract
from ..conv import ConvParams
from ..shapes import Ancestors, Array, Channels, ConvState, Mask
from .arithmetic import Approx
from .inputs import Inexact, paired
from .pairs.sequential import output


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
    M_0, u_0, given = paired(contract, inexact, params, M=M, u=u)
    pairs: Any = conv.scan(M_0, u_0, given) if live is None else conv.scan_masked(M_0, u_0, live, given)
    return output(pairs[0], live), pairs[1]


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
    M_0, u_0, given = paired(contract, inexact, params, M=M, u=u)
    windows: Any = Approx(_paths(M, u, ancestors), _paths(M_0.error, u_0.error, ancestors), contract)
    y: Any = conv.read(windows, given)
    return output(y.map(lambda a: a.reshape(u.shape)), np.einsum("btt -> bt", ancestors))


def _paths(M: ConvState, u: Channels, ancestors: Ancestors) -> Array:
    """The window of every node along its ancestors, row after row: (b t) c w."""
    width = M.shape[2]
    ext = np.concatenate([M, u.transpose(0, 2, 1)], axis=2)
    columns = np.stack(
        [[np.concatenate([np.arange(width), width + np.flatnonzero(seen)])[-width:] for seen in row] for row in ancestors]
    )
    found = np.take_along_axis(ext[:, None], columns[:, :, None, :], axis=3)
    return found.reshape(len(u) * u.shape[1], *M.shape[1:])
