"""Retention, a recurrence that no package knows: linear attention whose state decays by a constant of each head.

a  = exp(A)            (1)
S' = a S + k v^T       (2)
o  = S'^T q            (3)

Source: arXiv:2307.08621, equation 1, without its rotation.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy import einsum, exp

from ssmspec_ref.checks import checked
from ssmspec_ref.records import Record, masked
from ssmspec_ref.shapes import Array, DeltaState, DeltaStates, HeadParam, Mask, Value, Values

HeadKey = Float64[Array, "b h k"]
HeadKeys = Float64[Array, "b t h k"]


@dataclass(frozen=True)
class RetentionParams(Record):
    A: HeadParam  # the log decay of a token, below 0


@dataclass(frozen=True)
class RetentionToken(Record):
    q: HeadKey
    k: HeadKey
    v: Value


@dataclass(frozen=True)
class RetentionWindow(Record):
    q: HeadKeys
    k: HeadKeys
    v: Values

    def token(self, t: int) -> RetentionToken:
        return RetentionToken(self.q[:, t], self.k[:, t], self.v[:, t])


@checked
def step(S: DeltaState, token: RetentionToken, params: RetentionParams) -> tuple[Value, DeltaState]:
    """One token of every row. Raises: ShapeMismatch, PrecisionError."""
    return _step(S, token, np.broadcast_to(params.A, token.v.shape[:2]))


def _step(S: DeltaState, token: RetentionToken, log_decay: Array) -> tuple[Value, DeltaState]:
    S_next = exp(log_decay)[..., None, None] * S + einsum("bhk, bhv -> bhkv", token.k, token.v)  # (1) (2)
    return einsum("bhkv, bhk -> bhv", S_next, token.q), S_next  # (3)


def log_decays(window: RetentionWindow, params: RetentionParams, live: Mask | None) -> Array:
    """A at every live token, 0 at a no-op (b t h)."""
    A = np.broadcast_to(params.A, window.v.shape[:3])
    return A if live is None else A * live[:, :, None]


@checked
def states(
    S: DeltaState, window: RetentionWindow, params: RetentionParams, live: Mask | None = None
) -> tuple[Values, DeltaStates]:
    """The output at every token and the state after it. Raises: ShapeMismatch, PrecisionError, EmptyWindow."""
    window, A = window if live is None else masked(window, live), log_decays(window, params, live)
    outputs, after = [], []
    for t in range(window.v.shape[1]):
        o, S = _step(S, window.token(t), A[:, t])
        outputs.append(o)
        after.append(S)
    return np.stack(outputs, axis=1), np.stack(after, axis=1)


@checked
def scan(
    S: DeltaState, window: RetentionWindow, params: RetentionParams, live: Mask | None = None
) -> tuple[Values, DeltaState]:
    """Advance by every live token. Raises: ShapeMismatch, PrecisionError, EmptyWindow."""
    o, after = states(S, window, params, live)
    return o, after[:, -1]
