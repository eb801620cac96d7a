"""The decay from each token to each later token: the lower triangular matrix of the chunked forms."""

import numpy as np

from .shapes import Array


def decays(log_decay: Array) -> Array:
    """The fraction left at token i of what token j wrote; time is the last axis, of length 1 + T.

    E[i, j] = sum_{j < m <= i} log_decay[m], -inf where j > i (1)    decays = exp(E) (2)

    Entry 0 is the state that the window starts from: column 0 is the fraction left of it, and log_decay[0] is not read.
    The mask is applied before the exponential: above the diagonal the sums would be positive and overflow to inf, and
    inf * 0 is NaN. Each sum is computed on its own, because the difference of two running sums loses the digits of a short
    stretch after a long one.

    Source: arXiv:2405.21060, listing 1 (segsum).
    """
    T = log_decay.shape[-1]
    inside = np.tri(T, k=-1, dtype=bool)  # m > j
    E = np.cumsum(np.where(inside, log_decay[..., :, None], 0.0), axis=-2)
    E = np.where(np.tri(T, dtype=bool), E, -np.inf)  # (1)
    return np.exp(E)  # (2)


def from_start(log_decay: Array) -> Array:
    """log_decay with a leading 0 for the state that the window starts from; time is the last axis."""
    return np.concatenate([np.zeros_like(log_decay[..., :1]), log_decay], axis=-1)


def pieces(tokens: int, chunk: int) -> list[tuple[int, int]]:
    """The first token and the end of each chunk of a window; the last chunk may be shorter."""
    return [(begin, min(begin + chunk, tokens)) for begin in range(0, tokens, chunk)]
