"""The gated delta rule from a checkpoint and the corrections since then.

The write of a token depends on the state before it, u_t = beta_t (v_t - S-_t^T k_t), so the ring stores u, not v. With S_0
the checkpoint and (u_j, k_j, g_j) stored for each token since then, k normalised,

w_0,t = exp(sum_{i<=t} g_i),  w_j,t = exp(sum_{j<i<=t} g_i)         one per key channel            (1)
S_t = diag(w_0,t) S_0 + sum_{j<=t} diag(w_j,t) k_j u_j^T                                           (2)
r_t(a) = S_0^T (w_0,t a) + sum_{j held} (k_j . w_j,t a) u_j         the read of a from the past       (3)

and for the tokens s, t of a window after them

R_t = beta_t (v_t - r_t(k_t))                                                                      (4)
A_ts = beta_t (k_s . w_s,t k_t) for s < t, else 0                                                  (5)
(I + A) u = R                                       unit lower triangular: no state is formed         (6)
o_t = r_t(q_t) + sum_{s<=t} (k_s . w_s,t q_t) u_s                                                  (7)

A scalar gate is a channel gate with equal entries.

Source: ReplaySSM, algorithms 6 and 8; the gate per key channel is ours, following Kimi Linear, section 3.
"""

from dataclasses import dataclass

import numpy as np
from numpy import einsum, exp, repeat

from ..checks import checked
from ..records import Record, concat, masked, prefix
from ..shapes import Array, DeltaState, Held, Mask, RingKeyGates, RingKeys, RingPerHeads, RingValues, Values
from ..tree.token_decays import log_decays
from . import DeltaParams, DeltaWindow, keys_and_queries


@dataclass(frozen=True)
class DeltaHistory(Record):
    """What the ring stores per token: the correction u, the normalised key, the log decay."""

    u: RingValues
    k: RingKeys
    g: RingPerHeads | RingKeyGates


def entries(window: DeltaWindow, params: DeltaParams) -> DeltaHistory:
    """The ring entries of a window's tokens, with u = 0; u depends on the states and is filled in later."""
    _, k = keys_and_queries(window.q, window.k, window.k.shape[2], params)
    return DeltaHistory(np.zeros_like(window.v), k, window.g)


@checked
def fold(S_0: DeltaState, history: DeltaHistory, held: Held, params: DeltaParams) -> DeltaState:
    """The state after the tokens in the ring: equation (2) of the module.

    Raises: ShapeMismatch, PrecisionError.
    Source: ReplaySSM, algorithm 6, line 1.
    """
    past = masked(history, held)
    k = widened(past.k, S_0)
    w = exp(log_decays(per_channel(past.g, S_0))[:, -1])  # (1)
    return w[:, 0, ..., None] * S_0 + einsum("blhk, blhk, blhv -> bhkv", w[:, 1:], k, past.u)  # (2)


@checked
def output_only(
    S_0: DeltaState, history: DeltaHistory, held: Held, window: DeltaWindow, params: DeltaParams, live: Mask
) -> tuple[Values, DeltaHistory]:
    """The outputs of a window after the tokens in the ring, and its ring entries: equations (1) and (3) to (7) of the module.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    Source: ReplaySSM, algorithm 8; its rebuilt state is read through (3) and never formed.
    """
    window = masked(window, live)
    new = masked(entries(window, params), live)
    past, (l, tokens) = masked(history, held), (held.shape[1], window.v.shape[1])
    run = concat(past, new)
    k = widened(run.k, S_0)
    q, k_t = keys_and_queries(window.q, window.k, S_0.shape[1], params)
    w = exp(log_decays(per_channel(run.g, S_0))[:, l:])  # (1)
    to_key, to_query = (einsum("blhk, btlhk, bthk -> btlh", k, w[:, :, 1:], a) for a in (k_t, q))
    from_key, from_query = (einsum("bhkv, bthk, bthk -> bthv", S_0, w[:, :, 0], a) for a in (k_t, q))
    read_key = from_key + einsum("btlh, blhv -> bthv", to_key[:, :, :l], past.u)  # (3)
    read_query = from_query + einsum("btlh, blhv -> bthv", to_query[:, :, :l], past.u)  # (3)
    u = window.beta[..., None] * (window.v - read_key)  # (4)
    A = window.beta[:, :, None] * to_key[:, :, l:]  # (5), its diagonal and above unread
    for t in range(tokens):
        u[:, t] -= einsum("bsh, bshv -> bhv", A[:, t, :t], u[:, :t])  # (6)
    o = read_query + einsum("btsh, bshv -> bthv", to_query[:, :, l:], u)  # (7)
    return o, DeltaHistory(u, new.k, new.g)


@checked
def state_and_output(
    S_0: DeltaState, history: DeltaHistory, held: Held, window: DeltaWindow, params: DeltaParams, live: Mask
) -> tuple[Values, DeltaHistory]:
    """The same outputs, each computed from the rebuilt state S before its token:

    S- = diag(exp g) S    u = beta (v - S-^T k)    o = S-^T q + u (k . q)

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    Source: ReplaySSM, algorithm 6.
    """
    window = masked(window, live)
    new = masked(entries(window, params), live)
    q, k = keys_and_queries(window.q, window.k, S_0.shape[1], params)
    decay = exp(per_channel(window.g, S_0))
    u, o = np.zeros_like(window.v), np.zeros_like(window.v)
    for t in range(window.v.shape[1]):
        past = np.concatenate([held, live[:, :t]], axis=1)
        S = fold(S_0, concat(history, prefix(DeltaHistory(u, new.k, new.g), t)), past, params)  # (2)
        S_decayed = decay[:, t, ..., None] * S
        u[:, t] = window.beta[:, t, :, None] * (window.v[:, t] - einsum("bhkv, bhk -> bhv", S_decayed, k[:, t]))
        o[:, t] = einsum("bhkv, bhk -> bhv", S_decayed, q[:, t])
        o[:, t] += u[:, t] * einsum("bhk, bhk -> bh", k[:, t], q[:, t])[..., None]
    return o, DeltaHistory(u, new.k, new.g)


def widened(k: RingKeys, S: DeltaState) -> RingKeyGates:
    """The keys of the key heads, repeated for each value head."""
    return repeat(k, S.shape[1] // k.shape[2], axis=2)


def per_channel(g: Array, S: DeltaState) -> Array:
    """A gate per head, repeated for every key channel."""
    return g if g.ndim == 4 else repeat(g[..., None], S.shape[2], axis=3)
