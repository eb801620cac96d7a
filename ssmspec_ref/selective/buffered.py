"""The selective scan of Mamba-1 from a checkpoint and the inputs since then.

With S_0 the checkpoint, the tokens stored since then, and ld_j = dt_j A, one per channel and state,

w_0,t = exp(sum_{i<=t} ld_i),  w_j,t = exp(sum_{j<i<=t} ld_i)              (1)
S_t = w_0,t S_0 + sum_{j<=t} w_j,t (dt_j x_j B_j^T)                        (2)
y_t = sum_n C_t,n (w_0,t S_0)_n + sum_{j<=t} dt_j x_j sum_n w_j,t,n B_j,n C_t,n, + D x, silu(z)  (3)

Output-only (3) needs no state here either, but it does not factor: w depends on the state index n, so the inner sum differs
for every channel, and B_j . C_t is never formed. A window costs t l d n multiplications, compared with t l (n + d) for SSD,
which is no fewer than rebuilding the states. It is defined, but not faster.

Source: ours, following ReplaySSM, algorithms 2 and 4, whose decay is per head.
"""

from dataclasses import dataclass

import numpy as np
from numpy import einsum, exp

from ..checks import checked
from ..functions import silu
from ..records import Record, concat, masked, prefix
from ..shapes import Array, ChannelState, Held, Inners, Mask, RingInners, RingShareds
from ..tree.token_decays import log_decays
from . import SelectiveParams, SelectiveWindow, step_size


@dataclass(frozen=True)
class SelectiveHistory(Record):
    """What the ring stores per token: x and B after the convolution, dt after bias and softplus."""

    x: RingInners
    dt: RingInners
    B: RingShareds


def entries(window: SelectiveWindow, params: SelectiveParams) -> SelectiveHistory:
    """The ring entries of a window's tokens. They do not depend on states, so they can be stored before acceptance."""
    return SelectiveHistory(window.x, step_size(window.dt, params), window.B)


@checked
def fold(S_0: ChannelState, history: SelectiveHistory, held: Held, params: SelectiveParams) -> ChannelState:
    """The state after the tokens in the ring: equation (2) of the module.

    Raises: ShapeMismatch, PrecisionError.
    Source: ours, as the module.
    """
    past = masked(history, held)
    w = exp(log_decays(past.dt[..., None] * params.A)[:, -1])  # (1)
    return w[:, 0] * S_0 + einsum("bldn, bld, bld, bln -> bdn", w[:, 1:], past.dt, past.x, past.B)  # (2)


@checked
def output_only(
    S_0: ChannelState,
    history: SelectiveHistory,
    held: Held,
    window: SelectiveWindow,
    params: SelectiveParams,
    live: Mask,
) -> tuple[Inners, SelectiveHistory]:
    """The outputs of a window after the tokens in the ring, and its ring entries: equations (1) and (3) of the module.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    Source: ours, as the module.
    """
    window = masked(window, live)
    new = masked(entries(window, params), live)
    run = concat(masked(history, held), new)
    w = exp(log_decays(run.dt[..., None] * params.A)[:, -window.x.shape[1] :])  # (1)
    y = einsum("btdn, bdn, btn -> btd", w[:, :, 0], S_0, window.C)
    y = y + einsum("btldn, bln, btn, bld -> btd", w[:, :, 1:], run.B, window.C, run.dt * run.x)  # (3)
    return finish(y, window, params), new


@checked
def state_and_output(
    S_0: ChannelState,
    history: SelectiveHistory,
    held: Held,
    window: SelectiveWindow,
    params: SelectiveParams,
    live: Mask,
) -> tuple[Inners, SelectiveHistory]:
    """The same outputs, each computed from a rebuilt state: y_t = S_t C_t with S_t from equation (2) of the module.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    Source: ours, as the module.
    """
    window = masked(window, live)
    new = masked(entries(window, params), live)
    y = np.zeros_like(window.x)
    for t in range(window.x.shape[1]):
        past = np.concatenate([held, live[:, : t + 1]], axis=1)
        S = fold(S_0, concat(history, prefix(new, t + 1)), past, params)  # (2)
        y[:, t] = einsum("bdn, bn -> bd", S, window.C[:, t])
    return finish(y, window, params), new


def finish(y: Array, window: SelectiveWindow, params: SelectiveParams) -> Inners:
    """Add the skip D x and apply the gate silu(z)."""
    if params.D is not None:
        y = y + params.D * window.x
    return y if window.z is None else y * silu(window.z)
