"""SSD from a checkpoint and the inputs since then: the state is rebuilt when needed, or not at all.

With S_0 the checkpoint, the tokens stored since then, and ld_j = dt_j A,

w_0,t = exp(sum_{i<=t} ld_i),  w_j,t = exp(sum_{j<i<=t} ld_i)                (1)
S_t = w_0,t S_0 + sum_{j<=t} w_j,t dt_j x_j B_j^T                            (2)
y_t = w_0,t S_0 C_t + sum_{j<=t} w_j,t (B_j . C_t) dt_j x_j, + D x, silu(z)  (3)

State-and-output computes y_t = S_t C_t from (2). Output-only is (3): S_t is never formed, B_j . C_t is one number for all
heads of a group, and the tokens of a window do not depend on each other. Only x, dt and B are stored; C is used once, for its
token.

Source: ReplaySSM, algorithms 2 and 4.
"""

from dataclasses import dataclass

import numpy as np
from numpy import einsum, exp

from ..checks import checked
from ..functions import silu
from ..records import Record, concat, masked, prefix
from ..shapes import Array, Heads, Held, Mask, RingHeads, RingPerHeads, RingProjs, State
from ..tree.token_decays import log_decays
from . import SSDParams, SSDWindow, per_head, skip, step_size


@dataclass(frozen=True)
class SSDHistory(Record):
    """What the ring stores per token: x and B after the convolution, dt after bias, softplus and limits."""

    x: RingHeads
    dt: RingPerHeads
    B: RingProjs


def entries(window: SSDWindow, params: SSDParams) -> SSDHistory:
    """The ring entries of a window's tokens. They do not depend on states, so they can be stored before acceptance."""
    return SSDHistory(window.x, step_size(window.dt, params), window.B)


@checked
def fold(S_0: State, history: SSDHistory, held: Held, params: SSDParams) -> State:
    """The state after the tokens in the ring: equation (2) of the module.

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
    """The outputs of a window after the tokens in the ring, and its ring entries: equations (1) and (3) of the module.

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
    """The same outputs, each computed from a rebuilt state: y_t = S_t C_t with S_t from equation (2) of the module.

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
    """Add the skip D x and apply the gate silu(z)."""
    y = y + skip(window.x, params.D)
    return y if window.z is None else y * silu(window.z)
