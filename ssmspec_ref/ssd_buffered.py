"""SSD from a checkpoint and the inputs since: the state is rebuilt when it is needed, or not at all.

With S_0 the checkpoint, the tokens held since it, and ld_j = dt_j A,

w_0,t = exp(sum_{i<=t} ld_i),  w_j,t = exp(sum_{j<i<=t} ld_i)                (1)
S_t = w_0,t S_0 + sum_{j<=t} w_j,t dt_j x_j B_j^T                            (2)
y_t = w_0,t S_0 C_t + sum_{j<=t} w_j,t (B_j . C_t) dt_j x_j, + D x, silu(z)  (3)

State-and-output reads y_t = S_t C_t from (2). Output-only is (3): S_t is never formed, B_j . C_t is one number for all heads
of a group, and the tokens of a window do not wait for each other. Only x, dt and B are held; C is read once, when it comes.

Source: ReplaySSM, algorithms 2 and 4.
"""

from dataclasses import dataclass

import numpy as np
from numpy import einsum, exp

from .checks import checked
from .functions import silu
from .records import Record, concat, masked, prefix
from .shapes import Array, Heads, Held, Mask, RingHeads, RingPerHeads, RingProjs, State
from .ssd import SSDParams, SSDWindow, per_head, skip, step_size
from .unrolled import log_decays


@dataclass(frozen=True)
class SSDHistory(Record):
    """What is held of each token: x and B behind the convolution, dt after bias, softplus and limits."""

    x: RingHeads
    dt: RingPerHeads
    B: RingProjs


def entries(window: SSDWindow, params: SSDParams) -> SSDHistory:
    """What will be held of a window's tokens. It depends on no state, so it may be held before anything is accepted."""
    return SSDHistory(window.x, step_size(window.dt, params), window.B)


@checked
def fold(S_0: State, history: SSDHistory, held: Held, params: SSDParams) -> State:
    """The state after the held tokens: equation (2) of the module.

    Raises: ShapeMismatch, PrecisionError, ParameterError.
    Source: ReplaySSM, algorithm 4 (flush).
    """
    past = masked(history, held)
    w = exp(log_decays(past.dt * params.A)[:, -1])  # (1)
    B = per_head(past.B, past.x.shape[2])
    written = einsum("blh, blh, blhp, blhn -> bhpn", w[:, 1:], past.dt, past.x, B)
    return einsum("bh, bhpn -> bhpn", w[:, 0], S_0) + written  # (2)


@checked
def output_only(
    S_0: State, history: SSDHistory, held: Held, window: SSDWindow, params: SSDParams, live: Mask
) -> tuple[Heads, SSDHistory]:
    """The outputs of a window behind the held tokens, and what to hold of it: equations (1) and (3) of the module.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    Source: ReplaySSM, algorithm 2 (one token) and 4 (a window).
    """
    window = masked(window, live)
    new = masked(entries(window, params), live)
    run = concat(masked(history, held), new)
    tokens, heads = window.x.shape[1:3]
    B, C = per_head(run.B, heads), per_head(window.C, heads)
    w = exp(log_decays(run.dt * params.A)[:, -tokens:])  # (1)
    scores = einsum("blhn, bthn -> btlh", B, C)
    y = einsum("bth, bhpn, bthn -> bthp", w[:, :, 0], S_0, C)
    y = y + einsum("btlh, btlh, blh, blhp -> bthp", w[:, :, 1:], scores, run.dt, run.x)  # (3)
    return finish(y, window, params), new


@checked
def state_and_output(
    S_0: State, history: SSDHistory, held: Held, window: SSDWindow, params: SSDParams, live: Mask
) -> tuple[Heads, SSDHistory]:
    """The same outputs, each read from a rebuilt state: y_t = S_t C_t with S_t from equation (2) of the module.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    Source: ReplaySSM, section on the two routes (outer product).
    """
    window = masked(window, live)
    new = masked(entries(window, params), live)
    C = per_head(window.C, window.x.shape[2])
    y = np.zeros_like(window.x)
    for t in range(window.x.shape[1]):
        past = np.concatenate([held, live[:, : t + 1]], axis=1)
        S = fold(S_0, concat(history, prefix(new, t + 1)), past, params)  # (2)
        y[:, t] = einsum("bhpn, bhn -> bhp", S, C[:, t])
    return finish(y, window, params), new


def finish(y: Array, window: SSDWindow, params: SSDParams) -> Heads:
    """The skip and the gate."""
    y = y + skip(window.x, params.D)
    return y if window.z is None else y * silu(window.z)
