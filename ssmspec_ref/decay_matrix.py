"""What is left of each token at each later token: the lower triangular matrix of the chunked forms."""

import numpy as np

from .shapes import Array


def decays(log_decay: Array) -> Array:
    """What is left at token i of something written at token j; time is the last axis, of length 1 + T.

    E[i, j] = sum_{j < m <= i} log_decay[m], -inf where j > i (1)    decays = exp(E) (2)

    Entry 0 stands for the state that the window starts from: column 0 is what is left of it, and log_decay[0] is not read.
    The mask is applied before the exponential: sums over reversed stretches are positive and would overflow to inf, and
    inf 0 is no number. Each stretch is summed by itself; the difference of two running sums loses the digits of a short
    stretch behind a long one.

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
    """Where the chunks of a window begin and end; the last one may be shorter."""
    return [(begin, min(begin + chunk, tokens)) for begin in range(0, tokens, chunk)]
