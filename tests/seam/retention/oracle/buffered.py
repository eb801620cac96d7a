"""Retention from a checkpoint and the keys and values since."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy import einsum, exp

from ssmspec_ref.records import Record, concat, masked, prefix
from ssmspec_ref.shapes import Array, DeltaState, Held, Mask, RingValues, Values
from ssmspec_ref.tree.token_decays import log_decays

from . import RetentionParams, RetentionWindow

RingHeadKeys = Float64[Array, "b l h k"]


@dataclass(frozen=True)
class RetentionHistory(Record):
    k: RingHeadKeys
    v: RingValues


def entries(window: RetentionWindow, params: RetentionParams) -> RetentionHistory:
    return RetentionHistory(window.k, window.v)


def _weights(held: Array, params: RetentionParams) -> Array:
    return exp(log_decays(held[:, :, None] * params.A))


def fold(S_0: DeltaState, history: RetentionHistory, held: Held, params: RetentionParams) -> DeltaState:
    """The state after the held tokens."""
    past, w = masked(history, held), _weights(held, params)[:, -1]
    return w[:, 0, :, None, None] * S_0 + einsum("blh, blhk, blhv -> bhkv", w[:, 1:], past.k, past.v)


def output_only(
    S_0: DeltaState, history: RetentionHistory, held: Held, window: RetentionWindow, params: RetentionParams, live: Mask
) -> tuple[Values, RetentionHistory]:
    window, both = masked(window, live), np.concatenate([held, live], axis=1)
    new = entries(window, params)
    run, w = concat(masked(history, held), new), _weights(both, params)[:, held.shape[1] :]
    scores = einsum("bthk, blhk -> btlh", window.q, run.k) * w[:, :, 1:]
    o = einsum("bth, bthk, bhkv -> bthv", w[:, :, 0], window.q, S_0) + einsum("btlh, blhv -> bthv", scores, run.v)
    return o, new


def state_and_output(
    S_0: DeltaState, history: RetentionHistory, held: Held, window: RetentionWindow, params: RetentionParams, live: Mask
) -> tuple[Values, RetentionHistory]:
    window = masked(window, live)
    new, o = entries(window, params), np.zeros_like(window.v)
    for t in range(live.shape[1]):
        past = np.concatenate([held, live[:, : t + 1]], axis=1)
        S = fold(S_0, concat(history, prefix(new, t + 1)), past, params)
        o[:, t] = einsum("bhkv, bhk -> bhv", S, window.q[:, t])
    return o, new
