"""The short convolution over a whole run, as a sum of shifted signals: an independent derivation of `shortconv`.

ext = [S | the live products B x]                                  of each row           (1)
y_t = C_t (bias + sum_l weight_{w-1-l} ext_{t-l})                  l = 0 .. w-1, lags    (2)
S'  = the last w - 1 columns of ext                                                      (3)

No token is stepped: (2) adds w shifted copies of the signal. A chunk only says how much of it is convolved at a time.
"""

import numpy as np

from ..checks import checked
from ..decay_matrix import pieces
from ..shapes import Array, Columns, Inners, Mask
from . import ShortConvParams, ShortConvWindow, check_columns


@checked
def scan(
    S: Columns, window: ShortConvWindow, params: ShortConvParams, live: Mask | None = None, *, chunk: int = 64
) -> tuple[Inners, Columns]:
    """As `shortconv.scan`, by chunks of any size; no-ops are left out of the signal.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    Source: arXiv:2511.23404 (LFM2), with the convolution written as a sum over lags.
    """
    check_columns(S, params)
    every = np.ones(window.x.shape[:2], dtype=bool) if live is None else live
    y, S_next = np.zeros_like(window.x), S.copy()
    for b, row in enumerate(every):
        tokens = np.flatnonzero(row)
        for begin, end in pieces(len(tokens), chunk):
            part = tokens[begin:end]
            ext = np.concatenate([S_next[b].T, window.B[b, part] * window.x[b, part]])  # (1)
            y[b, part] = window.C[b, part] * _convolved(ext, len(part), params)  # (2)
            S_next[b] = ext[len(ext) - params.columns :].T  # (3)
    return y, S_next


def _convolved(ext: Array, tokens: int, params: ShortConvParams) -> Array:
    """The sum of (2) for one row, over the last `tokens` places of ext."""
    total = np.zeros((tokens, ext.shape[1])) if params.bias is None else np.tile(params.bias, (tokens, 1))
    for lag in range(params.columns + 1):
        total += params.weight[:, params.columns - lag] * ext[len(ext) - tokens - lag : len(ext) - lag]
    return total
