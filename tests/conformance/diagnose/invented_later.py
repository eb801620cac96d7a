"""Twelve more bugs that nobody planted: tails of loops, grids that are too small, and terms in the wrong order."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import conv, delta, selective, ssd
from ssmspec_ref.functions import silu
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import tree as ssd_tree

from .invented import Bug, single

GRID = 4
"""Heads, or tokens of a chunk, that the launches of this file have."""


def odd_tail(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """A loop that is unrolled by two leaves out the last token of an odd window."""
    y, S_next = ssd.scan(S, window, params)
    if y.shape[1] % 2 and y.shape[1] > 1:
        y[:, -1] = 0.0
        S_next = ssd.states(S, window, params)[1][:, -2]
    return single(y, S_next)


def four_heads(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """The grid has four programs for heads, however many there are."""
    y, S_next = ssd.scan(S, window, params)
    y[:, :, GRID:], S_next[:, GRID:] = 0.0, S[:, GRID:]
    return single(y, S_next)


def second_chunk(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """The second chunk starts from the state before the first."""
    y, S_next = ssd.scan(S, window, params)
    if y.shape[1] > GRID:
        rest = type(window)(*(None if a is None else a[:, GRID:].copy() for a in vars(window).values()))
        y[:, GRID:], S_next = ssd.scan(S, rest, params)
    return single(y, S_next)


def clamped_early(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    """dt is clamped before softplus, and not after it."""
    low, high = params.dt_limit
    bias = 0.0 if params.dt_bias is None else params.dt_bias
    dt = np.clip(token.dt + bias, low, high)
    return single(*ssd.step(S, replace(token, dt=dt), replace(params, dt_bias=None, dt_limit=(0.0, float("inf")))))


def next_heads_dt(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    """The pointer to dt is one head ahead."""
    if params.dt_bias is not None:
        return single(*ssd.step(S, token, params))
    return single(*ssd.step(S, replace(token, dt=np.roll(token.dt, -1, axis=1)), params))


def without_itself(S: Array, window: Any, ancestors: Array, params: Any) -> Array:
    """The mask is strict: a node does not see itself."""
    y = ssd_tree.scan(S, window, ancestors, params)
    B, C = (np.repeat(a, window.x.shape[2] // a.shape[2], axis=2) for a in (window.B, window.C))
    dt = (
        np.logaddexp(0.0, window.dt + (0.0 if params.dt_bias is None else params.dt_bias))
        if params.dt_softplus
        else window.dt
    )
    own = np.einsum("bthn, bthn -> bth", B, C) * np.clip(dt, *params.dt_limit)
    gate = 1.0 if window.z is None else silu(window.z)
    live = np.einsum("btt -> bt", ancestors)[..., None, None]
    return single(np.where(live, y - own[..., None] * window.x * gate, y))[0]


def bias_after(M: Array, u: Array, params: Any) -> tuple[Array, ...]:
    """The bias is added after SiLU."""
    y, M_next = conv.scan(M, u, replace(params, bias=None))
    return single(y + (0.0 if params.bias is None else params.bias), M_next)


def raw_keys(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    """Queries are normalised, keys are not."""
    if not params.l2_norm:
        return single(*delta.step(S, token, params))
    q = token.q / np.sqrt((token.q**2).sum(axis=-1, keepdims=True) + params.eps)
    return single(*delta.step(S, replace(token, q=q), replace(params, l2_norm=False)))


def sigmoid_gate(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    """The gate is the sigmoid of z, and not z times it."""
    if token.z is None:
        return single(*selective.step(S, token, params))
    y, S_next = selective.step(S, replace(token, z=None), params)
    return single(y / (1 + np.exp(-token.z)), S_next)


def rates_backwards(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """A is indexed from the last state."""
    return single(*selective.scan(S, window, replace(params, A=params.A[:, ::-1].copy())))


def unscaled(K: Array, V: Array, length: Array, q: Array, k: Array, v: Array, ancestors: Array, scale: float) -> Array:
    """Scores are not scaled."""
    y, heads = np.zeros(q.shape), q.shape[2] // k.shape[2]
    for b, t, h in np.ndindex(q.shape[:3]):
        seen = ancestors[b, t]
        if seen.any():
            keys, values = (
                np.concatenate([c[b, : length[b], h // heads], n[b, seen, h // heads]]) for c, n in ((K, k), (V, v))
            )
            score = keys @ q[b, t, h]
            weight = np.exp(score - score.max())
            y[b, t, h] = weight @ values / weight.sum()
    return single(y)[0]


class PathInReverse:
    """Accepted tokens are replayed from the last to the root."""

    def __init__(self, S: Array, params: Any) -> None:
        self.S, self.params = S.copy(), params

    def verify(self, window: Any, parents: Array | None = None) -> Array:
        self.window = window
        ancestors = np.repeat(np.tri(window.x.shape[1], dtype=bool)[None], len(window.x), axis=0)
        if parents is not None:
            for b, row in enumerate(parents):
                ancestors[b] = False
                for i, parent in enumerate(row):
                    if parent >= -1:
                        ancestors[b, i] = ancestors[b, parent] if parent >= 0 else False
                        ancestors[b, i, i] = True
        return single(ssd_tree.scan(self.S, window, ancestors, self.params))[0]

    def taken(self, path: Array, tokens: int) -> Array:
        """The nodes that are replayed."""
        return path[::-1]

    def commit(self, advanced: Array, path: Array) -> None:
        for b, count in enumerate(advanced):
            if count:
                nodes = self.taken(path[b, :count], self.window.x.shape[1])
                taken = {name: None if a is None else a[b : b + 1, nodes] for name, a in vars(self.window).items()}
                self.S[b : b + 1] = ssd.scan(self.S[b : b + 1].copy(), type(self.window)(**taken), self.params)[1]

    def state(self) -> Array:
        return single(self.S)[0]


class OneShort(PathInReverse):
    """A window that is accepted whole is replayed without its last token."""

    def taken(self, path: Array, tokens: int) -> Array:
        return path[: max(tokens - 1, 1)]


QUICK = (
    Bug(clamped_early, "ssd.step", ("as if dt were clamped to dt_limit before softplus",)),
    Bug(next_heads_dt, "ssd.step", ("as if head i read dt of head i + 1",)),
    Bug(bias_after, "conv.scan", ("as if bias were added after the activation", "with bias=off; or with act=off")),
    Bug(raw_keys, "delta.step", ("as if k were not normalised, but q were",)),
    Bug(sigmoid_gate, "selective.step", ("as if the gate were sigmoid(z)",)),
    Bug(rates_backwards, "selective.scan", ("as if states read A in reverse order",)),
    Bug(unscaled, "attention.verify_tree", ("as if scale were 1",)),
)
SLOW = (
    Bug(odd_tail, "ssd.scan", ("only token 2 (the last)", "y is 0 where it is wrong", "with 2 or 4 tokens instead of 3")),
    Bug(four_heads, "ssd.scan", ("y is 0 where it is wrong", "S is stale", "with 4 heads instead of 5")),
    Bug(second_chunk, "ssd.scan", ("as if tokens from 4 on started from the state passed in",)),
    Bug(PathInReverse, "ssd.verify_replay", ("as if accepted tokens were replayed from the last to the first",)),
    Bug(OneShort, "ssd.verify_replay", ("as if a window that is accepted whole counted one token fewer",)),
    Bug(without_itself, "ssd.verify_tree", ()),
)
"""Whose causes take some seconds to search."""
