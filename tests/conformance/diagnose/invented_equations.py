"""Bugs in one equation, each computed by code of its own, which the report names by a line of the reference or by a term."""

from typing import Any

import numpy as np

from ssmspec_ref import delta, selective, ssd
from ssmspec_ref.functions import silu
from ssmspec_ref.shapes import Array

from .invented import Bug, single


def beta_of_the_column(S: Array, window: Any, ancestors: Array, params: Any) -> tuple[Array, ...]:
    """The triangular matrix of a tree is scaled by the beta of its columns."""
    q, k = delta.keys_and_queries(window.q, window.k, window.v.shape[2], params)
    b, t, h, _ = window.v.shape
    g = window.g if window.g.ndim == 4 else np.broadcast_to(window.g[..., None], k.shape)
    o = np.zeros(window.v.shape)
    for row in range(b):
        seen = ancestors[row]
        total = np.einsum("tj, jhk -> thk", seen.astype(float), np.where(np.diag(seen)[:, None, None], g[row], 0.0))
        for head in range(h):
            u = np.zeros((t, window.v.shape[3]))
            for i in np.flatnonzero(np.diag(seen)):
                path = np.flatnonzero(seen[i])
                decayed = np.exp(total[i, head] - total[path, head]) * k[row, path, head]
                at_S = (np.exp(total[i, head]) * k[row, i, head]) @ S[row, head]
                held = (decayed[:-1] @ k[row, i, head]) * window.beta[row, path[:-1], head]
                u[i] = window.beta[row, i, head] * (window.v[row, i, head] - at_S) - held @ u[path[:-1]]
                o[row, i, head] = (np.exp(total[i, head]) * q[row, i, head]) @ S[row, head]
                o[row, i, head] += (decayed @ q[row, i, head]) @ u[path]
    return single(o)


def unclamped_decay(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    """The kernel clamps dt where it forms the input, and not where it forms the decay."""
    raw = token.dt if params.dt_bias is None else token.dt + params.dt_bias
    raw = np.logaddexp(0.0, raw) if params.dt_softplus else raw
    step = np.clip(raw, *params.dt_limit)
    heads = token.x.shape[1]
    B, C = ssd.per_head(token.B, heads), ssd.per_head(token.C, heads)
    S_next = np.exp(raw * params.A)[..., None, None] * S + np.einsum("bh, bhp, bhn -> bhpn", step, token.x, B)
    y = np.einsum("bhpn, bhn -> bhp", S_next, C) + ssd.skip(token.x, params.D)
    return single(y if token.z is None else y * silu(token.z), S_next)


def packed_decay(S: Array, window: Any, ancestors: Array, params: Any) -> tuple[Array, ...]:
    """The decays of a tree are a running sum over its nodes as they are stored."""
    dt = ssd.step_size(window.dt, params)
    t, heads = dt.shape[1:]
    B, C = ssd.per_head(window.B, heads), ssd.per_head(window.C, heads)
    live = np.einsum("btt -> bt", ancestors)
    total = np.cumsum(np.where(live[..., None], dt * params.A, 0.0), axis=1)
    weight = np.where(ancestors[..., None], np.exp(total[:, :, None] - total[:, None]) * dt[:, None], 0.0)
    y = np.einsum("btjh, bthn, bjhn, bjhp -> bthp", weight, C, B, np.where(live[..., None, None], window.x, 0.0))
    y += np.einsum("bth, bthn, bhpn -> bthp", np.exp(total), C, S)
    y += np.stack([ssd.skip(window.x[:, i], params.D) for i in range(t)], axis=1)
    y = y if window.z is None else y * silu(window.z)
    return single(np.where(live[..., None, None], y, 0.0))


def undecayed_by_one(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """A scan folds the state in after its first token, without that token's decay."""
    dt = window.dt if params.dt_bias is None else window.dt + params.dt_bias
    dt = np.logaddexp(0.0, dt) if params.dt_softplus else dt
    return single(*selective.scan(S / np.exp(dt[:, 0, :, None] * params.A), window, params))


EQUATIONS = (
    Bug(unclamped_decay, "ssd.step", ("as if the decay took dt before dt_limit, and the input after it",)),
    Bug(packed_decay, "ssd.verify_tree", ("summed over all nodes from one to the other, not over the path",)),
    Bug(undecayed_by_one, "selective.scan", ("as if the state passed in were not decayed by the first token",)),
)
SLOW_EQUATIONS = (Bug(beta_of_the_column, "delta.verify_tree", ("einsum('bjh, bthk, btjhk, bjhk -> bthj'", "delta/tree.py")),)
