"""The recurrences once more, by plain loops over scalars."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ssmspec_ref import delta, selective, ssd
from ssmspec_ref.shapes import Array


def loop_ssd(S: Array, w: ssd.SSDWindow, params: ssd.SSDParams) -> tuple[Array, Array]:
    S, y = S.copy(), np.zeros_like(w.x)
    low, high = params.dt_limit
    for b, t, h, p in np.ndindex(*w.x.shape):
        g = h * w.B.shape[2] // w.x.shape[2]
        dt = w.dt[b, t, h] + (0.0 if params.dt_bias is None else params.dt_bias[h])
        dt = math.log1p(math.exp(dt)) if params.dt_softplus else dt
        dt = min(max(dt, low), high)
        D = 0.0 if params.D is None else params.D[h] if params.D.ndim == 1 else params.D[h, p]
        total = D * w.x[b, t, h, p]
        for n in range(S.shape[3]):
            S[b, h, p, n] = math.exp(dt * params.A[h]) * S[b, h, p, n] + dt * w.x[b, t, h, p] * w.B[b, t, g, n]
            total += S[b, h, p, n] * w.C[b, t, g, n]
        gate = 1.0 if w.z is None else w.z[b, t, h, p] / (1 + math.exp(-w.z[b, t, h, p]))
        y[b, t, h, p] = total * gate
    return y, S


def loop_selective(S: Array, w: selective.SelectiveWindow, params: selective.SelectiveParams) -> tuple[Array, Array]:
    S, y = S.copy(), np.zeros_like(w.x)
    for b, t, d in np.ndindex(*w.x.shape):
        dt = w.dt[b, t, d] + (0.0 if params.dt_bias is None else params.dt_bias[d])
        dt = math.log1p(math.exp(dt)) if params.dt_softplus else dt
        total = 0.0 if params.D is None else params.D[d] * w.x[b, t, d]
        for n in range(S.shape[2]):
            S[b, d, n] = math.exp(dt * params.A[d, n]) * S[b, d, n] + dt * w.x[b, t, d] * w.B[b, t, n]
            total += S[b, d, n] * w.C[b, t, n]
        gate = 1.0 if w.z is None else w.z[b, t, d] / (1 + math.exp(-w.z[b, t, d]))
        y[b, t, d] = total * gate
    return y, S


def loop_delta(S: Array, w: delta.DeltaWindow, params: delta.DeltaParams) -> tuple[Array, Array]:
    S, o = S.copy(), np.zeros_like(w.v)
    K, V = S.shape[2:]
    for b, t, h in np.ndindex(*w.v.shape[:3]):
        group = h * w.q.shape[2] // w.v.shape[2]
        q, k = w.q[b, t, group].tolist(), w.k[b, t, group].tolist()
        if params.l2_norm:
            q, k = ([x / math.sqrt(sum(y * y for y in xs) + params.eps) for x in xs] for xs in (q, k))
        scale = K**-0.5 if params.scale is None else params.scale
        for i in range(K):
            S[b, h, i] *= math.exp(w.g[b, t, h] if w.g.ndim == 3 else w.g[b, t, h, i])
        for v in range(V):
            miss = w.v[b, t, h, v] - sum(S[b, h, i, v] * k[i] for i in range(K))
            for i in range(K):
                S[b, h, i, v] += w.beta[b, t, h] * k[i] * miss
            o[b, t, h, v] = sum(S[b, h, i, v] * scale * q[i] for i in range(K))
    return o, S


LOOPS: dict[str, Callable[..., Any]] = {"ssd": loop_ssd, "delta": loop_delta, "selective": loop_selective}
