"""Causal attention over whole sequences, without a cache: an independent derivation of `attention`.

y_i = sum_j <= i  w_ij v_j,    w_ij = exp(s_ij) / sum_j <= i exp(s_ij),    s_ij = scale (R^i q_i) . (R^j k_j)    (1)
    = scale Re sum over pairs of (q_i conj(k_j)) e^{i f (i - j)}, and the plain product of the other channels     (2)

(2) reads each rotated pair of channels as a complex number, so only the distance between two tokens enters: it rotates
neither q nor k, and shares no code with `rotary`.

Source: arXiv:1706.03762, section 3.2.1; arXiv:2104.09864, section 3.2 (the form in the distance).
"""

import numpy as np
from numpy import einsum

from ..checks import checked
from ..shapes import KV, Array, Query
from . import AttentionParams, AttentionWindow


@checked
def scan(sequence: AttentionWindow, params: AttentionParams) -> Query:
    """The output at every token of whole sequences: equation (2), then (1).

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    """
    rows, tokens, heads, channels = sequence.q.shape
    each = heads // sequence.k.shape[2]
    distance = np.subtract.outer(np.arange(tokens), np.arange(tokens))
    f = np.zeros(0) if params.frequencies is None else params.frequencies
    (q_pair, q_rest), (k_pair, k_rest) = _pairs(sequence.q, len(f)), _pairs(sequence.k, len(f))
    y = np.zeros((rows, tokens, heads, channels))
    for h in range(heads):
        g = h // each
        turn = np.exp(1j * distance[..., None] * f)
        turning = einsum("bif, bjf, ijf -> bij", q_pair[:, :, h], k_pair[:, :, g].conj(), turn).real
        s = turning + einsum("bie, bje -> bij", q_rest[:, :, h], k_rest[:, :, g])  # (2)
        w = np.exp(np.where(distance >= 0, s * (channels**-0.5 if params.scale is None else params.scale), -np.inf))
        y[:, :, h] = einsum("bij, bje -> bie", w / w.sum(axis=2, keepdims=True), sequence.v[:, :, g])  # (1)
    return y


def _pairs(x: KV, f: int) -> tuple[Array, KV]:
    """The rotated channels as complex numbers, and the other channels."""
    return x[..., :f] + 1j * x[..., f : 2 * f], x[..., 2 * f :]
