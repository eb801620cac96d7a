"""Mamba-3 from a checkpoint of its four pieces and the inputs since.

ring entry of a token = x, norm(B) + B_bias, pi dt tanh(angle), ld, dt l, dt (1 - l)                       (1)
th_j  = th_0 + the held increments up to j,  k_j rotated by it                                             (2)
S     = exp(sum ld) S_0 + sum_j exp(sum_{i > j} ld_i) [g_j v_j k_j^T + b_j v_j-1 k_j-1^T]     the fold     (3)
th, k-, x- = those of the last held token                                                                  (4)

Keys are stored before their rotation: then an entry depends on no state, and a flush that moves the checkpoint leaves the
entries of a window that is not accepted yet valid. `output_only` reads a window as a path that follows the ring
(`tree.read`); no state is formed.
Source: ReplaySSM, algorithms 2 and 4, applied to a write of two terms; the stored keys without rotation are ours.
"""

import numpy as np
from numpy import einsum, exp

from ..checks import checked
from ..records import concat, masked, prefix
from ..shapes import Array, Heads, Held, Mask, Packed
from ..tree.token_decays import log_decays
from . import Mamba3Params, Mamba3Window, Pieces, packed, pieces_of, step, values
from .tree import Inputs, behind, inputs, read, rotated


def entries(window: Mamba3Window, params: Mamba3Params) -> Inputs:
    """The entries of a window (1)."""
    return inputs(window, params)


def _order(held: Mask) -> Array:
    """The ancestors of each token of a run of which only the held ones count."""
    tokens = held.shape[1]
    mask: Array = np.tri(tokens, dtype=bool) & held[:, None, :] & held[:, :, None]
    return mask


@checked
def fold(S_0: Packed, history: Inputs, held: Held, params: Mamba3Params) -> Packed:
    """The state after the held tokens, (2) to (4).

    Raises: ShapeMismatch, PrecisionError, ParameterError.
    """
    run, order = masked(history, held), _order(held)
    start = pieces_of(S_0, history.x.shape[3], history.turned.shape[3], params)
    angle, keys, parents = rotated(start, run, order, params)  # (2)
    w = exp(log_decays(run.log_decay)[:, -1])
    b = exp(run.log_decay) * run.before
    v, v_par = values(run.x, params), values(behind(run.x, start.value, parents), params)
    S = einsum("bh, bhpn -> bhpn", w[:, 0], start.S)
    S = S + einsum("blh, blh, blhrp, blhrn -> bhpn", w[:, 1:], run.own, v, keys)
    S = S + einsum("blh, blh, blhrp, blhrn -> bhpn", w[:, 1:], b, v_par, behind(keys, start.key, parents))  # (3)
    last = np.where(held, np.arange(held.shape[1]), -1).max(axis=1, initial=-1)[:, None]
    ends = (behind(a, s, last)[:, 0] for a, s in ((angle, start.angle), (keys, start.key), (run.x, start.value)))
    return packed(Pieces(S, *ends))  # (4)


@checked
def output_only(
    S_0: Packed, history: Inputs, held: Held, window: Mamba3Window, params: Mamba3Params, live: Mask
) -> tuple[Heads, Inputs]:
    """The outputs of a window after the held tokens, and its entries; no state is formed.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """
    window = masked(window, live)
    new = masked(inputs(window, params), live)
    counted = np.concatenate([held, live], axis=1)
    run = masked(concat(history, new), counted)
    start = pieces_of(S_0, window.x.shape[3], window.angle.shape[2], params)
    y = read(start, run, window, _order(counted), params)
    return np.where(live[:, :, None, None], y, 0.0), new


@checked
def state_and_output(
    S_0: Packed, history: Inputs, held: Held, window: Mamba3Window, params: Mamba3Params, live: Mask
) -> tuple[Heads, Inputs]:
    """The same by way of the state before every token: the fold (3), then one step.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """
    window = masked(window, live)
    new, y = masked(inputs(window, params), live), np.zeros_like(window.x)
    for t in range(live.shape[1]):
        past = np.concatenate([held, live[:, :t]], axis=1)
        S = fold(S_0, concat(history, prefix(new, t)), past, params)
        y[:, t] = np.where(live[:, t, None, None], step(S, window.token(t), params)[0], 0.0)
    return y, new
