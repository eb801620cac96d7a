"""Recurrences in NumPy's float32 as a kernel's author writes them: SSD (step, scan, tree, ring), Mamba-1, gated delta rule.

They are written from docs/how-to/kernel.md and from what the reference's docstrings say, and share no code with it. SSD's
step and its tree go head by head and row by row, as the programs of a launch do.
"""

from typing import Any

import numpy as np

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject
from ssmspec_ref.shapes import Array

CONTRACT = NumericContract(function_ulp=3)
"""float32 throughout; NumPy's exp needs 3 ulp."""
RING = 10
"""Entries of the ring: a window of up to 8 tokens fits beside what is held, or the row is flushed before it."""


def f32(array: Any) -> Any:
    return None if array is None else np.ascontiguousarray(array, dtype=np.float32)


def silu(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return x * np.where(x >= 0, np.float32(1), e) / (1 + e)


def softplus(x: Array) -> Array:
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, np.float32(20)))))


def step_size(dt: Any, params: Any) -> Array:
    dt = f32(dt)
    if params.dt_bias is not None:
        dt = dt + f32(params.dt_bias)
    if params.dt_softplus:
        dt = softplus(dt)
    low, high = (np.float32(limit) for limit in params.dt_limit)
    return np.minimum(np.maximum(dt, low), high)


def ssd_step(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    S, x, B, C, z = (f32(a) for a in (S, token.x, token.B, token.C, token.z))
    dt, A, D = step_size(token.dt, params), f32(params.A), f32(params.D)
    heads, groups = x.shape[1], B.shape[1]
    y, S_next = np.empty_like(x), np.empty_like(S)
    for h in range(heads):
        g = h // (heads // groups)
        update = (dt[:, h, None] * x[:, h])[:, :, None] * B[:, g, None, :]
        S_next[:, h] = np.exp(dt[:, h] * A[h])[:, None, None] * S[:, h] + update
        y[:, h] = np.einsum("bpn, bn -> bp", S_next[:, h], C[:, g])
        if D is not None:
            y[:, h] += D[h] * x[:, h]
        if z is not None:
            y[:, h] *= silu(z[:, h])
    return y, S_next


def ssd_scan(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    S, x, z, D = (f32(a) for a in (S, window.x, window.z, params.D))
    dt = step_size(window.dt, params)
    decay, copies = np.exp(dt * f32(params.A)), x.shape[2] // window.B.shape[2]
    B, C = (np.repeat(f32(a), copies, axis=2) for a in (window.B, window.C))
    y = np.empty_like(x)
    for t in range(x.shape[1]):
        update = (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None, :]
        S = decay[:, t, :, None, None] * S + update
        y[:, t] = np.einsum("bhpn, bhn -> bhp", S, C[:, t])
    if D is not None:
        y += (D[:, None] if D.ndim == 1 else D) * x
    if z is not None:
        y *= silu(z)
    return y, S


def ssd_tree(S: Array, window: Any, ancestors: Array, params: Any) -> Array:
    """Every node starts from a copy of its parent's state; the last strict ancestor is the parent, and a root has none."""
    x, B, C, z, D = (f32(a) for a in (window.x, window.B, window.C, window.z, params.D))
    dt = step_size(window.dt, params)
    rows, nodes, heads, _ = x.shape
    S, y, group = f32(S), np.zeros_like(x), np.arange(heads) // (heads // B.shape[2])
    for b in range(rows):
        after = [S[b]] * nodes
        for i in range(nodes):
            if not ancestors[b, i, i]:
                continue
            above = np.flatnonzero(ancestors[b, i, :i])
            start = after[above[-1]] if len(above) else S[b]
            update = (dt[b, i, :, None] * x[b, i])[..., None] * B[b, i, group][:, None, :]
            after[i] = np.exp(dt[b, i] * f32(params.A))[:, None, None] * start + update
            y[b, i] = np.einsum("hpn, hn -> hp", after[i], C[b, i, group])
            if D is not None:
                y[b, i] += (D[:, None] if D.ndim == 1 else D) * x[b, i]
            if z is not None:
                y[b, i] *= silu(z[b, i])
    return y


class Ring:
    """ReplaySSM's buffer: a checkpoint, and a ring of the inputs accepted since, which every window replays."""

    def __init__(self, S: Array, params: Any) -> None:
        self.S, self.params = f32(S).copy(), params
        rows, heads, p, n = S.shape
        self.x, self.B = (np.zeros((rows, RING, heads, size), np.float32) for size in (p, n))
        self.dt = np.zeros((rows, RING, heads), np.float32)
        self.origin, self.held = np.zeros(rows, np.int64), np.zeros(rows, np.int64)

    def advanced(self, S: Array, x: Array, dt: Array, B: Array) -> Array:
        decay = np.exp(dt * f32(self.params.A))[:, None, None]
        return decay * S + (dt[:, None] * x)[..., None] * B[:, None, :]

    def replayed(self, b: int) -> Array:
        S = self.S[b]
        for s in range(self.held[b]):
            at = (self.origin[b] + s) % RING
            S = self.advanced(S, self.x[b, at], self.dt[b, at], self.B[b, at])
        return S

    def verify(self, window: Any, parents: Array | None = None) -> Array:
        x, C, z, D = (f32(a) for a in (window.x, window.C, window.z, self.params.D))
        dt, copies = step_size(window.dt, self.params), x.shape[2] // C.shape[2]
        B, C = (np.repeat(f32(a), copies, axis=2) for a in (window.B, C))
        y = np.empty_like(x)
        for b in range(len(x)):
            if self.held[b] + x.shape[1] > RING:
                self.S[b] = self.replayed(b)
                self.origin[b], self.held[b] = (self.origin[b] + self.held[b]) % RING, 0
            S = self.replayed(b)
            for t in range(x.shape[1]):
                S = self.advanced(S, x[b, t], dt[b, t], B[b, t])
                y[b, t] = np.einsum("hpn, hn -> hp", S, C[b, t])
        self.window = x, dt, B
        if D is not None:
            y += (D[:, None] if D.ndim == 1 else D) * x
        return y if z is None else y * silu(z)

    def commit(self, advanced: Array, path: Array) -> None:
        x, dt, B = self.window
        for b, count in enumerate(advanced):
            for t in range(count):
                at = (self.origin[b] + self.held[b] + t) % RING
                self.x[b, at], self.dt[b, at], self.B[b, at] = x[b, t], dt[b, t], B[b, t]
            self.held[b] += count

    def state(self) -> Array:
        return np.stack([self.replayed(b) for b in range(len(self.held))])


def selective_scan(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    S, x, dt, B, C, z = (f32(a) for a in (S, window.x, window.dt, window.B, window.C, window.z))
    if params.dt_bias is not None:
        dt = dt + f32(params.dt_bias)
    if params.dt_softplus:
        dt = softplus(dt)
    y = np.empty_like(x)
    for t in range(x.shape[1]):
        S = np.exp(dt[:, t, :, None] * f32(params.A)) * S + (dt[:, t] * x[:, t])[..., None] * B[:, t, None, :]
        y[:, t] = np.einsum("bdn, bn -> bd", S, C[:, t])
    if params.D is not None:
        y += f32(params.D) * x
    return (y if z is None else y * silu(z)), S


def delta_scan(S: Array, window: Any, params: Any) -> tuple[Array, Array]:
    S, q, k, v, g, beta = (f32(a) for a in (S, window.q, window.k, window.v, window.g, window.beta))
    if params.l2_norm:
        q, k = (a / np.sqrt((a * a).sum(axis=-1, keepdims=True) + np.float32(params.eps)) for a in (q, k))
    q = q * np.float32(q.shape[-1] ** -0.5 if params.scale is None else params.scale)
    q, k = (np.repeat(a, v.shape[2] // a.shape[2], axis=2) for a in (q, k))
    o = np.empty_like(v)
    decay = np.exp(g if g.ndim == 4 else g[..., None])
    for t in range(v.shape[1]):
        decayed = decay[:, t, :, :, None] * S
        u = beta[:, t, :, None] * (v[:, t] - np.einsum("bhkv, bhk -> bhv", decayed, k[:, t]))
        S = decayed + k[:, t, :, :, None] * u[:, :, None, :]
        o[:, t] = np.einsum("bhkv, bhk -> bhv", S, q[:, t])
    return o, S


def adapter() -> Adapter:
    operations = {
        "ssd.step": Capability(ssd_step, CONTRACT),
        "ssd.scan": Capability(ssd_scan, CONTRACT),
        "ssd.verify_tree": Capability(ssd_tree, CONTRACT),
        "ssd.buffered_verify": Capability(Ring, CONTRACT, Limits(sizes={"t": (1, 8)}, reason="the ring has 10 entries")),
        "selective.scan": Capability(selective_scan, CONTRACT),
        "delta.scan": Capability(delta_scan, CONTRACT),
    }
    return Adapter("strangers", "1", (Subject("recurrences", operations),))
