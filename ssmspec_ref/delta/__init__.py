"""The gated delta rule (Gated DeltaNet; with a gate per key channel, Kimi Delta Attention).

q^ = scale q / |q|,  k^ = k / |k|             if the layer normalises     (1)
S- = diag(exp g) S                            decay before the error     (2)
u  = beta (v - S-^T k^)                       the correction             (3)
S' = S- + k^ u^T                              write it at its key         (4)
o  = S'^T q^                                  read                       (5)

S is (k, v): its rows are indexed by keys. g <= 0 is a finite log decay, one per value head, or one per value head and key
channel. Several value heads may share a key head: value head h reads key head h // (h_v / h_k).
"""

from dataclasses import dataclass

import numpy as np
from numpy import einsum, repeat

from ..checks import check_groups, checked
from ..errors import ParameterError
from ..functions import decay, l2_normed, product, sigmoid, softplus, stored
from ..records import Record, masked
from ..shapes import DeltaState, DeltaStates, HeadParam, Key, KeyGate, KeyGates, Keys, Mask, PerHead, PerHeads, Value, Values

KEYS = -2
"""The axis of a state that an output sums over, along which its blocks lie."""


@dataclass(frozen=True)
class DeltaParams(Record):
    """How a layer uses its keys and queries.

    `scale` None means k^-1/2; `l2_norm` divides q and k by sqrt(sum of squares + eps). The key of a no-op is 0, so eps must
    be positive.

    Raises: ParameterError for a scale or eps that is not positive.
    """

    scale: float | None = None
    l2_norm: bool = True
    eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.eps > 0 or (self.scale is not None and not self.scale > 0):
            raise ParameterError(f"scale and eps are {self.scale} and {self.eps}; give scale > 0 (or None) and eps > 0")


@dataclass(frozen=True)
class DeltaToken(Record):
    """The recurrence's inputs for one token, after the convolution: g is a log decay, beta the strength of the write."""

    q: Key
    k: Key
    v: Value
    g: PerHead | KeyGate
    beta: PerHead


@dataclass(frozen=True)
class DeltaWindow(Record):
    """The recurrence's inputs for a window of tokens, after the convolution."""

    q: Keys
    k: Keys
    v: Values
    g: PerHeads | KeyGates
    beta: PerHeads

    def token(self, t: int) -> DeltaToken:
        return DeltaToken(self.q[:, t], self.k[:, t], self.v[:, t], self.g[:, t], self.beta[:, t])


def gates(a: PerHead, b: PerHead, A: HeadParam, dt_bias: HeadParam) -> tuple[PerHead, PerHead]:
    """The gates of Gated DeltaNet from their projections: g = A softplus(a + dt_bias), A < 0, and beta = sigmoid(b).

    Takes a token or a window, because heads are the last axis. For Kimi Delta Attention a and dt_bias are per head and key
    channel, and A is (h, 1).

    Raises: ParameterError for A > 0, NaN or infinite. (A log decay of -inf is a decay of 0, but the closed forms subtract
    it.)
    Source: arXiv:2412.06464, section 3.4; A = -exp(A_log) in the published checkpoints. Kimi Linear, section 4.
    """
    if not np.all(np.isfinite(A) & (A <= 0)):
        raise ParameterError(
            f"A has entries in {A.min()} .. {A.max()}; a positive one lets the state grow; give a finite A = -exp(A_log)"
        )
    return A * softplus(a + dt_bias), sigmoid(b)


def keys_and_queries(q: Key, k: Key, heads: int, params: DeltaParams) -> tuple[Key, Key]:
    """q^ and k^, one per value head (1). The channels are the last axis, the key heads the one before.

    Raises: ParameterError if the key heads do not divide the value heads.
    """
    groups, channels = q.shape[-2:]
    check_groups(groups, heads)
    if params.l2_norm:
        q, k = l2_normed(q, params.eps), l2_normed(k, params.eps)
    scale = channels**-0.5 if params.scale is None else params.scale
    return repeat(scale * q, heads // groups, axis=-2), repeat(k, heads // groups, axis=-2)


@checked
def step(S: DeltaState, token: DeltaToken, params: DeltaParams) -> tuple[Value, DeltaState]:
    """Advance every value head by one token: equations (1) to (5) of the module.

    Units: g is a natural logarithm; beta is in 0 .. 1, or in 0 .. 2 if negative eigenvalues are allowed.
    Raises: ShapeMismatch, PrecisionError, ParameterError.
    Source: arXiv:2412.06464, equation 10; Kimi Linear, section 3 (gate per channel).
    """
    q, k = keys_and_queries(token.q, token.k, token.v.shape[1], params)  # (1)
    S_next = advance(S, token, k)  # (2) to (4)
    return read(S_next, q), S_next  # (5)


def advance(S: DeltaState, token: DeltaToken, k: Key) -> DeltaState:
    """The next state, from k^ of every value head: equations (2) to (4) of the module."""
    a = decay(token.g) if token.g.ndim == 3 else decay(token.g)[:, :, None]
    S_decayed = a[..., None] * S  # (2)
    u = token.beta[..., None] * product(token.v - einsum("bhkv, bhk -> bhv", S_decayed, k))  # (3)
    return stored(S_decayed + einsum("bhk, bhv -> bhkv", k, u), KEYS)  # (4)


def read(S: DeltaState, q: Key) -> Value:
    """The output, from q^ of every value head: equation (5) of the module."""
    return product(einsum("bhkv, bhk -> bhv", S, q))  # (5)


@checked
def states(S: DeltaState, window: DeltaWindow, params: DeltaParams, live: Mask | None = None) -> tuple[Values, DeltaStates]:
    """The output at every token and the state after it; tokens that are not live are no-ops, and their output is 0.

    A no-op has g = 0, so that exp g = 1 (6), and beta = 0, so that u = 0 (7). Its q, k and v are set to 0 too, so that none
    of its values is read. It leaves the state unchanged, bit for bit (but -0 becomes 0).

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    Source: as `step`; the no-op is ours, following Snakes and Ladders, section 3.1.
    """
    if live is not None:
        window = masked(window, live)  # (6) (7)
    outputs, after = [], []
    for t in range(window.v.shape[1]):
        o, S = step(S, window.token(t), params)
        outputs.append(o)
        after.append(S)
    return np.stack(outputs, axis=1), np.stack(after, axis=1)


@checked
def scan(S: DeltaState, window: DeltaWindow, params: DeltaParams, live: Mask | None = None) -> tuple[Values, DeltaState]:
    """Advance by every live token of a window in turn: the outputs and the final state.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    Source: as `step`.
    """
    o, after = states(S, window, params, live)
    return o, after[:, -1]
