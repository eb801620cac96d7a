"""Log decays between the tokens of a run, for the forms that use inputs instead of states."""

import numpy as np

from ..shapes import Array


def log_decays(log_decay: Array) -> Array:
    """E[t, 0]: the log decay of the initial state at token t; E[t, j+1]: that of token j's input; -inf above the diagonal.

    E[t, 0] = sum of g_i over i <= t (1)    E[t, j+1] = sum of g_i over j < i <= t (2)

    Built token by token, E[t] = E[t-1] + g_t, not as a difference of running sums, which loses the digits of a small decay
    after a strong one. The mask is in the exponent, so exp(E) is 0 above the diagonal and never inf or NaN.

    Units: natural logarithms; the axes are (b t ...) in, (b t j ...) out, with j one longer than t.
    Source: ReplaySSM, section on output-only decode, where pre_t - pre_j is (2).
    """
    rows, tokens = log_decay.shape[:2]
    E = np.full((rows, tokens, tokens + 1, *log_decay.shape[2:]), -np.inf)
    run = np.zeros((rows, tokens + 1, *log_decay.shape[2:]))
    for t in range(tokens):
        run[:, : t + 1] += log_decay[:, t, None]
        E[:, t, : t + 2] = run[:, : t + 2]  # (1) (2)
    return E
