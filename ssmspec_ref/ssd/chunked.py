"""SSD in its matrix form, chunk by chunk: an independent derivation of `ssd`.

L_ij = exp(sum_{j < m <= i} dt_m A)  for j <= i, else 0                  (1)
Y    = (C B^T * L * dt) X            what the chunk's own tokens write   (2)
     + L_i0 S C_i                    the contribution of the chunk's first state   (3)
S'   = L_T0 S + sum_j L_Tj dt_j x_j B_j^T                                (4)
y    = (Y + D x) silu(z)                                                 (5)

Column 0 of L is for the state that the chunk starts from. The heads of a group are an extra axis r after the axis g, so B and
C are never repeated. Only the softplus is shared with the step of `ssd`.
"""

import numpy as np
from numpy import einsum

from ..checks import check_groups, checked
from ..decay_matrix import decays, from_start, pieces
from ..errors import ParameterError
from ..functions import silu, softplus
from ..records import masked
from ..shapes import Array, Heads, Mask, State, States
from . import SSDParams, SSDWindow


@checked
def scan(S: State, window: SSDWindow, params: SSDParams, live: Mask | None = None, *, chunk: int = 64) -> tuple[Heads, State]:
    """The outputs and the final state of `ssd.scan`, computed in chunks of any size; the last chunk may be shorter.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError (chunk < 1; groups that do not divide the heads).
    Source: arXiv:2405.21060, section 6 and listing 1.
    """
    y, after = states(S, window, params, live, chunk=chunk)
    return y, after[:, -1]


@checked
def states(
    S: State, window: SSDWindow, params: SSDParams, live: Mask | None = None, *, chunk: int = 64
) -> tuple[Heads, States]:
    """The outputs, and the state after each chunk; the axis t of the states indexes chunks.

    Raises: as `scan`.
    Source: as `scan`.
    """
    if chunk < 1:
        raise ParameterError(f"chunk is {chunk}; it must be at least 1 token")
    check_groups(window.B.shape[2], window.x.shape[2])
    rows, tokens, heads, channels = window.x.shape
    grouped = (window.B.shape[2], heads // window.B.shape[2])
    dt = _dt(window.dt, params, live)
    window = window if live is None else masked(window, live)

    x, dt = window.x.reshape(rows, tokens, *grouped, channels), dt.reshape(rows, tokens, *grouped)
    A = params.A.reshape(grouped)
    S = S.reshape(rows, *grouped, *S.shape[2:])
    outputs, after = [], []
    for begin, end in pieces(tokens, chunk):
        cut = slice(begin, end)
        Y, S = _chunk(S, x[:, cut], dt[:, cut], window.B[:, cut], window.C[:, cut], A)
        outputs.append(Y.reshape(rows, end - begin, heads, channels))
        after.append(S.reshape(rows, heads, *S.shape[3:]))
    return _leave(np.concatenate(outputs, axis=1), window, params), np.stack(after, axis=1)


def _dt(raw: Array, params: SSDParams, live: Mask | None) -> Array:
    raw = raw if live is None else np.where(live[:, :, None], raw, 0.0)
    biased = raw if params.dt_bias is None else raw + params.dt_bias
    low, high = params.dt_limit
    dt = np.minimum(high, np.maximum(low, softplus(biased) if params.dt_softplus else biased))
    return dt if live is None else dt * live[:, :, None]


def _chunk(S: Array, x: Array, dt: Array, B: Array, C: Array, A: Array) -> tuple[Array, Array]:
    """One chunk: x (b t g r p), dt (b t g r), B and C (b t g n), A (g r), S (b g r p n)."""
    steps = dt.transpose(0, 2, 3, 1)  # (b g r t)
    L = decays(from_start(steps * A[:, :, None]))  # (1)
    scores = einsum("bign, bjgn -> bgij", C, B)[:, :, None] * L[..., 1:, 1:] * steps[..., None, :]
    Y = einsum("bgrij, bjgrp -> bigrp", scores, x)  # (2)
    Y = Y + einsum("bgri, bgrpn, bign -> bigrp", L[..., 1:, 0], S, C)  # (3)
    written = einsum("bgrj, bjgrp, bjgn -> bgrpn", L[..., -1, 1:] * steps, x, B)
    return Y, L[..., -1, 0, None, None] * S + written  # (4)


def _leave(Y: Array, window: SSDWindow, params: SSDParams) -> Array:
    if params.D is not None:
        D = params.D if params.D.ndim == 2 else np.outer(params.D, np.ones(window.x.shape[3]))
        Y = Y + einsum("hp, bthp -> bthp", D, window.x)
    return Y if window.z is None else silu(window.z) * Y  # (5)
