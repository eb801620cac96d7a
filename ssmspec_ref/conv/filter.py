"""The causal convolution as a finite impulse response over [M | u]: an independent derivation of `conv`.

ext = [M | the live inputs]                                       (1)
y_t = act(bias + sum_w weight_w ext_{t+1+w})                      (2)
M'  = the last w columns of ext                                   (3)
"""

import numpy as np

from ..checks import checked
from ..functions import silu
from ..shapes import Array, Channels, ConvState, Mask
from . import ConvParams


@checked
def scan(M: ConvState, u: Channels, params: ConvParams, live: Mask | None = None) -> tuple[Channels, ConvState]:
    """The outputs and the window of `conv.scan`, or of `conv.scan_masked`: no-ops are removed from the filtered signal.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    Source: arXiv:2312.00752, section 3.4; the convolution sum is `numpy.convolve`'s.
    """
    every = np.ones(u.shape[:2], dtype=bool) if live is None else live
    y, M_next = np.zeros_like(u), np.empty_like(M)
    for b, row in enumerate(every):
        ext = np.concatenate([M[b].T, u[b, row]])  # (1)
        y[b, row] = _filter(ext, params)  # (2)
        M_next[b] = ext[len(ext) - params.width :].T  # (3)
    return y, M_next


def _filter(ext: Array, params: ConvParams) -> Array:
    """(2) for one row: ext is (w + tokens, c); the first output, that of the old window, is dropped."""
    taps = params.weight[:, ::-1]
    signals = [np.convolve(ext[:, c], taps[c], mode="valid")[1:] for c in range(ext.shape[1])]
    y = np.stack(signals, axis=1) if signals else ext[params.width :]
    y = y if params.bias is None else y + params.bias
    return silu(y) if params.activation else y
