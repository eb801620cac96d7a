"""SSD, the recurrence of Mamba-2: one decay per head; the heads of a group share B and C.

dt = clip(softplus(dt_raw + dt_bias), dt_limit)   (1)
a  = exp(dt A)                                    (2)
U  = dt x B^T                                     (3)
S' = a S + U                                      (4)
y  = S' C + D x, then y silu(z) if z is given      (5)
"""

from dataclasses import dataclass

import numpy as np
from numpy import einsum, repeat

from ..checks import check_groups, checked
from ..errors import ParameterError
from ..functions import decay, product, silu, softplus, stored
from ..records import Record, masked
from ..shapes import Array, Head, HeadChannelParam, HeadParam, Heads, Mask, PerHead, PerHeads, Proj, Projs, State, States


@dataclass(frozen=True)
class SSDParams(Record):
    """Parameters of one layer. A is negative, per unit of dt; D is per head, or per head and channel.

    Raises: ParameterError for A > 0, NaN or infinite, or a dt_limit that is not an interval 0 <= low <= high.
    """

    A: HeadParam
    D: HeadParam | HeadChannelParam | None = None
    dt_bias: HeadParam | None = None
    dt_softplus: bool = True
    dt_limit: tuple[float, float] = (0.0, float("inf"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not np.all(np.isfinite(self.A) & (self.A <= 0)):
            raise ParameterError(
                f"A has entries in {self.A.min()} .. {self.A.max()}; a positive one lets the state grow; "
                "give a finite A = -exp(A_log)"
            )
        low, high = self.dt_limit
        if not 0 <= low <= high:
            raise ParameterError(f"dt_limit is ({low}, {high}); it must be 0 <= low <= high")


@dataclass(frozen=True)
class SSDToken(Record):
    """The recurrence's inputs for one token, after the convolution; dt is raw."""

    x: Head
    dt: PerHead
    B: Proj
    C: Proj
    z: Head | None = None


@dataclass(frozen=True)
class SSDWindow(Record):
    """The recurrence's inputs for a window of tokens, after the convolution; dt is raw."""

    x: Heads
    dt: PerHeads
    B: Projs
    C: Projs
    z: Heads | None = None

    def token(self, t: int) -> SSDToken:
        z = None if self.z is None else self.z[:, t]
        return SSDToken(self.x[:, t], self.dt[:, t], self.B[:, t], self.C[:, t], z)


@checked
def step_size(dt: PerHead | PerHeads, params: SSDParams) -> PerHead:
    """dt = clip(softplus(dt_raw + dt_bias), dt_limit) (1), for a token or a window.

    Raises: ShapeMismatch, PrecisionError.
    Source: arXiv:2405.21060, section 7; the limits are `dt_limit` of the published code.
    """
    if params.dt_bias is not None:
        dt = dt + params.dt_bias
    if params.dt_softplus:
        dt = softplus(dt)
    return np.clip(dt, *params.dt_limit)


@checked
def per_head(grouped: Proj | Projs, heads: int) -> Array:
    """B or C of a token or a window, repeated from groups to heads: head h reads group h // (heads / groups).

    Raises: ParameterError if the groups do not divide the heads.
    """
    groups = grouped.shape[-2]
    check_groups(groups, heads)
    return repeat(grouped, heads // groups, axis=-2)


def skip(x: Head, D: HeadParam | HeadChannelParam | None) -> Head:
    """D x, with D per head, or per head and channel; 0 without D."""
    if D is None:
        return np.zeros_like(x)
    return (D[:, None] if D.ndim == 1 else D) * x


@checked
def step(S: State, token: SSDToken, params: SSDParams) -> tuple[Head, State]:
    """Advance every head by one token: equations (1) to (5) of the module.

    Units: dt is the dimensionless step after softplus; A is per unit step.
    Raises: ShapeMismatch, PrecisionError, ParameterError.
    Source: arXiv:2405.21060, section 3 and listing 1; Snakes and Ladders, algorithm 1, lines 9 to 12.
    """
    return _step(S, token, step_size(token.dt, params), params)  # (1)


def _step(S: State, token: SSDToken, dt: PerHead, params: SSDParams) -> tuple[Head, State]:
    heads = token.x.shape[1]
    B, C = per_head(token.B, heads), per_head(token.C, heads)
    a = decay(dt * params.A)  # (2)
    U = einsum("bh, bhp, bhn -> bhpn", dt, token.x, B)  # (3)
    S_next = stored(a[..., None, None] * S + U)  # (4)
    y = product(einsum("bhpn, bhn -> bhp", S_next, C) + skip(token.x, params.D))  # (5)
    return (y if token.z is None else y * silu(token.z)), S_next


@checked
def states(S: State, window: SSDWindow, params: SSDParams, live: Mask | None = None) -> tuple[Heads, States]:
    """The output at every token and the state after it; tokens that are not live are no-ops, and their output is 0.

    A no-op changes the decay, dt = 0 so that a = 1 (6), and the update, x = B = 0 so that U = 0 (7). It leaves the state
    unchanged, bit for bit (but -0 becomes 0), whatever its values. dt is set to 0 after the limits are applied, because their
    lower end may be above 0. The third place where a no-op acts is the convolution (`conv.scan_masked`).

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
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
def scan(S: State, window: SSDWindow, params: SSDParams, live: Mask | None = None) -> tuple[Heads, State]:
    """Advance by every live token of a window in turn: the outputs and the final state.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    Source: as `step`.
    """
    y, after = states(S, window, params, live)
    return y, after[:, -1]
