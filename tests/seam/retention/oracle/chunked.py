"""Retention in its matrix form, chunk by chunk: a second derivation."""

import numpy as np
from numpy import einsum

from ssmspec_ref.decay_matrix import decays, from_start, pieces
from ssmspec_ref.records import masked
from ssmspec_ref.shapes import DeltaState, Mask, Values

from . import RetentionParams, RetentionWindow, log_decays


def scan(
    S: DeltaState, window: RetentionWindow, params: RetentionParams, live: Mask | None = None, *, chunk: int = 64
) -> tuple[Values, DeltaState]:
    """As `scan`, by chunks of any size."""
    A, outputs = log_decays(window, params, live), []
    window = window if live is None else masked(window, live)
    for begin, end in pieces(A.shape[1], chunk):
        q, k, v = (a[:, begin:end] for a in (window.q, window.k, window.v))
        L = decays(from_start(A[:, begin:end].transpose(0, 2, 1)))  # (b h i j)
        scores = einsum("bihk, bjhk -> bhij", q, k) * L[..., 1:, 1:]
        outputs.append(einsum("bhij, bjhv -> bihv", scores, v) + einsum("bhi, bihk, bhkv -> bihv", L[..., 1:, 0], q, S))
        S = L[..., -1, 0, None, None] * S + einsum("bhj, bjhk, bjhv -> bhkv", L[..., -1, 1:], k, v)
    return np.concatenate(outputs, axis=1), S
