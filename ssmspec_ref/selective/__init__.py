"""The selective scan of Mamba-1: one decay per channel and state; all channels share B and C.

dt = softplus(dt_raw + dt_bias)                   (1)
a  = exp(dt A)            A is (d, n)             (2)
U  = dt x B^T                                     (3)
S' = a S + U                                      (4)
y  = S' C + D x, then y silu(z) if z is given      (5)
"""

from dataclasses import dataclass

import numpy as np
from numpy import einsum

from ..checks import checked
from ..errors import ParameterError
from ..functions import decay, product, silu, softplus, stored
from ..records import Record, masked
from ..shapes import ChannelState, ChannelStates, Inner, InnerParam, Inners, InnerStateParam, Mask, Shared, Shareds


@dataclass(frozen=True)
class SelectiveParams(Record):
    """Parameters of one layer. A is negative, per unit of dt.

    Raises: ParameterError for A > 0, NaN or infinite.
    """

    A: InnerStateParam
    D: InnerParam | None = None
    dt_bias: InnerParam | None = None
    dt_softplus: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not np.all(np.isfinite(self.A) & (self.A <= 0)):
            raise ParameterError(
                f"A has entries in {self.A.min()} .. {self.A.max()}; a positive one lets the state grow; "
                "give a finite A = -exp(A_log)"
            )


@dataclass(frozen=True)
class SelectiveToken(Record):
    """The recurrence's inputs for one token, after the convolution; dt is raw, one per channel."""

    x: Inner
    dt: Inner
    B: Shared
    C: Shared
    z: Inner | None = None


@dataclass(frozen=True)
class SelectiveWindow(Record):
    """The recurrence's inputs for a window of tokens, after the convolution; dt is raw, one per channel."""

    x: Inners
    dt: Inners
    B: Shareds
    C: Shareds
    z: Inners | None = None

    def token(self, t: int) -> SelectiveToken:
        z = None if self.z is None else self.z[:, t]
        return SelectiveToken(self.x[:, t], self.dt[:, t], self.B[:, t], self.C[:, t], z)


@checked
def step_size(dt: Inner | Inners, params: SelectiveParams) -> Inner:
    """dt = softplus(dt_raw + dt_bias) (1), for a token or a window.

    Raises: ShapeMismatch, PrecisionError.
    Source: arXiv:2312.00752, algorithm 2.
    """
    if params.dt_bias is not None:
        dt = dt + params.dt_bias
    return softplus(dt) if params.dt_softplus else dt


@checked
def step(S: ChannelState, token: SelectiveToken, params: SelectiveParams) -> tuple[Inner, ChannelState]:
    """Advance every channel by one token: equations (1) to (5) of the module.

    Units: dt is the dimensionless step after softplus; A is per unit step.
    Raises: ShapeMismatch, PrecisionError.
    Source: arXiv:2312.00752, algorithm 2. Algorithm 1 of Snakes and Ladders has dt per channel and A per head, channel and
    state, which is this recurrence; in Mamba-2 both are per head (`ssd`).
    """
    return _step(S, token, step_size(token.dt, params), params)  # (1)


def _step(S: ChannelState, token: SelectiveToken, dt: Inner, params: SelectiveParams) -> tuple[Inner, ChannelState]:
    a = decay(dt[:, :, None] * params.A)  # (2)
    U = einsum("bd, bd, bn -> bdn", dt, token.x, token.B)  # (3)
    S_next = stored(a * S + U)  # (4)
    y = einsum("bdn, bn -> bd", S_next, token.C)  # (5)
    if params.D is not None:
        y = y + params.D * token.x
    y = product(y)
    return (y if token.z is None else y * silu(token.z)), S_next


@checked
def states(
    S: ChannelState, window: SelectiveWindow, params: SelectiveParams, live: Mask | None = None
) -> tuple[Inners, ChannelStates]:
    """The output at every token and the state after it; tokens that are not live are no-ops, and their output is 0.

    A no-op has dt = 0, so that a = 1 (6), and x = B = 0, so that U = 0 (7). It leaves the state unchanged, bit for bit
    (but -0 becomes 0).

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    Source: as `step`; Snakes and Ladders, section 3.1 (no-op tokens).
    """
    if live is not None:
        window = masked(window, live)  # (7)
    dt = step_size(window.dt, params)  # (1)
    if live is not None:
        dt = masked(dt, live)  # (6)
    outputs, after = [], []
    for t in range(window.x.shape[1]):
        y, S = _step(S, window.token(t), dt[:, t], params)
        outputs.append(y)
        after.append(S)
    return np.stack(outputs, axis=1), np.stack(after, axis=1)


@checked
def scan(
    S: ChannelState, window: SelectiveWindow, params: SelectiveParams, live: Mask | None = None
) -> tuple[Inners, ChannelState]:
    """Advance by every live token of a window in turn: the outputs and the final state.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    Source: as `step`.
    """
    y, after = states(S, window, params, live)
    return y, after[:, -1]
