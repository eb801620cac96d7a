"""The selective scan of Mamba-1 in closed form, chunk by chunk: an independent derivation of `selective`.

L_ij = exp(sum_{j < m <= i} dt_m A)  for j <= i, else 0; per channel and state   (1)
U_0  = S,  U_j = dt_j x_j B_j^T                                                  (2)
S_i  = sum_{j <= i} L_ij U_j                                                     (3)
y_i  = (S_i C_i + D x_i) silu(z_i)                                               (4)

Each state index has its own decay, so C B^T does not factor out of the sum as in `ssd_chunked`. Column 0 of L is for the
state that the chunk starts from.
"""

import numpy as np
from numpy import einsum

from ..checks import checked
from ..decay_matrix import decays, from_start, pieces
from ..errors import ParameterError
from ..functions import silu, softplus
from ..records import masked
from ..shapes import Array, ChannelState, ChannelStates, Inners, Mask
from . import SelectiveParams, SelectiveWindow


@checked
def scan(
    S: ChannelState, window: SelectiveWindow, params: SelectiveParams, live: Mask | None = None, *, chunk: int = 64
) -> tuple[Inners, ChannelState]:
    """The outputs and the final state of `selective.scan`, computed in chunks of any size; the last chunk may be shorter.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError (chunk < 1).
    Source: arXiv:2312.00752, section 3.2 (the recurrence unrolled); arXiv:2405.21060, section 2, for the matrix.
    """
    y, after = states(S, window, params, live, chunk=chunk)
    return y, after[:, -1]


@checked
def states(
    S: ChannelState, window: SelectiveWindow, params: SelectiveParams, live: Mask | None = None, *, chunk: int = 64
) -> tuple[Inners, ChannelStates]:
    """The outputs, and the state after each chunk; the axis t of the states indexes chunks.

    Raises: as `scan`.
    Source: as `scan`.
    """
    if chunk < 1:
        raise ParameterError(f"chunk is {chunk}; it must be at least 1 token")
    window = window if live is None else masked(window, live)
    raw = window.dt if params.dt_bias is None else window.dt + params.dt_bias
    dt = softplus(raw) if params.dt_softplus else raw
    dt = dt if live is None else dt * live[:, :, None]
    outputs, after = [], []
    for begin, end in pieces(window.x.shape[1], chunk):
        cut = slice(begin, end)
        run = _chunk(S, window.x[:, cut], dt[:, cut], window.B[:, cut], params.A)
        outputs.append(einsum("btdn, btn -> btd", run, window.C[:, cut]))
        S = run[:, -1]
        after.append(S)
    return _leave(np.concatenate(outputs, axis=1), window, params), np.stack(after, axis=1)


def _chunk(S: Array, x: Array, dt: Array, B: Array, A: Array) -> Array:
    """The state after every token of one chunk: x and dt (b t d), B (b t n), A (d n), S (b d n)."""
    log_decay = einsum("btd, dn -> bdnt", dt, A)
    L = decays(from_start(log_decay))  # (1)
    U = np.concatenate([S[:, None], (dt * x)[..., None] * B[:, :, None, :]], axis=1)  # (2)
    return einsum("bdnij, bjdn -> bidn", L[..., 1:, :], U)  # (3)


def _leave(y: Array, window: SelectiveWindow, params: SelectiveParams) -> Array:
    y = y if params.D is None else y + window.x * params.D
    return y if window.z is None else silu(window.z) * y  # (4)
