"""Correct implementations, written differently: the suite must pass them.

Each recurrence in NumPy, in the format of its contract, in three orders of evaluation, and in a fourth if its decays alone
carry the state:

sequential    token by token, the sum over the state from its last element to its first
chunked       in chunks of 4 tokens, from sums of log decays; between chunks the state is stored
output_only   the whole window at once, from the same sums; the state is stored at its end
associative   the whole window as a scan of pairs (decay, update), by doubling: products of decays

    a_ts = exp(sum of log decays of s+1 .. t)                                         (1)
    S_t  = a_t0 S_0 + sum over s <= t of a_ts (update of s)                           (2)
    u_t  = beta_t (v_t - (a_t0 S_0)^T k_t - sum over s < t of (k_t . a_ts k_s) u_s)   (3), the update of the delta rule
    y_t  = C_t (sum over l = 0 .. w-1 of weight_l u_t-l, + bias)                       (4), the short convolution

None of this code is taken from the reference.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from ssmspec_ref.contract import FLOAT64, Capability, NumericContract, Order, Subject
from ssmspec_ref.registry import Registry
from ssmspec_ref.shapes import Array

from .judge.draw import stored

CHUNK = 4
AT_ONCE = ("output_only", "associative")
"""Orders that store the state at the end of the window."""
Precision = Literal["fp64", "fp32", "bf16"]


@dataclass(frozen=True)
class Rewriting:
    """One recurrence in one precision and order. bf16 stores the state and the outputs in bf16 and computes in float32."""

    recurrence: str
    precision: Precision
    order: Order

    @property
    def contract(self) -> NumericContract:
        chunk = CHUNK if self.order == "chunked" else None
        if self.precision == "fp64":
            return replace(FLOAT64, order=self.order, chunk=chunk)
        narrow = self.precision == "bf16"
        kept: Literal["bf16", "fp32"] = "bf16" if narrow else "fp32"
        every = narrow and self.order not in AT_ONCE
        return NumericContract(kept, kept, order=self.order, chunk=chunk, stored_every_token=every, function_ulp=3.0)

    @property
    def subject(self) -> Subject:
        name = f"{self.recurrence} {self.precision} {self.order}"
        return Subject(name, {f"{self.recurrence}.scan": Capability(self.scan, self.contract)})

    def scan(self, S: Array, window: Any, params: Any) -> tuple[Array, Array]:
        dtype = np.float64 if self.precision == "fp64" else np.float32
        rule = RULES[self.recurrence]
        formed = rule.formed(lambda a: np.asarray(a, dtype=dtype), window, params)
        tokens = len(formed[0])
        step = {"sequential": 1, "chunked": CHUNK}.get(self.order, tokens)
        state, outputs = S.astype(dtype), []
        for begin in range(0, tokens, step):
            y, state = rule.runs[self.order](state, *(a[begin : begin + step] for a in formed))
            state = self.keep(state)
            outputs.append(y)
        y = np.moveaxis(np.concatenate(outputs), 0, 1)
        return self.out(rule.finished(y, window, params)), state

    def keep(self, S: Array) -> Array:
        """Round the state to its storage format."""
        return stored(S, "bf16").astype(np.float32) if self.precision == "bf16" else S

    def out(self, y: Array) -> Array:
        """Round an output to its storage format."""
        return stored(y, "bf16").astype(np.float32) if self.precision == "bf16" else np.ascontiguousarray(y)


def every() -> Iterator[Rewriting]:
    """Every recurrence in every precision and order."""
    for rule in RULES.values():
        for precision in get_args(Precision):
            for order in rule.runs:
                yield Rewriting(rule.name, precision, order)


States = Callable[[Array, Array, Array], Array]
"""The states of (2) from S_0, log decays and updates."""


def summed(S: Array, g: Array, updates: Array) -> Array:
    """The states of (2) after every token."""
    total, states = np.cumsum(g, axis=0), []
    for t in range(len(updates)):
        state = np.exp(total[t]) * S
        for s in range(t + 1):
            state = state + np.exp(total[t] - total[s]) * updates[s]
        states.append(state)
    return np.stack(states)


def scanned(S: Array, g: Array, updates: Array) -> Array:
    """The same states by a scan in which (a, u) before (b, v) is (a b, b u + v).

    Source: Hillis, Steele, Communications of the ACM 29 (1986); arXiv:2312.00752, section 3.3.2.
    """
    a, u, step = np.exp(g), updates, 1
    while step < len(u):
        u = np.concatenate([u[:step], a[step:] * u[:-step] + u[step:]])
        a = np.concatenate([a[:step], a[step:] * a[:-step]])
        step *= 2
    return a * S + u


def ssd(S: Array, x: Array, g: Array, B: Array, C: Array, dt: Array, states: States = summed) -> tuple[Array, Array]:
    """(1), (2) for x (t b h p), log decays g (t b h), B and C (t b h n)."""
    after = states(S, g[..., None, None], (dt[..., None] * x)[..., None] * B[:, :, :, None, :])
    return backwards(after * C[:, :, :, None, :]), after[-1]


def selective(S: Array, x: Array, g: Array, B: Array, C: Array, dt: Array, states: States = summed) -> tuple[Array, Array]:
    """(1), (2) for x (t b d), log decays g (t b d n), B and C (t b n)."""
    after = states(S, g, (dt * x)[..., None] * B[:, :, None, :])
    return backwards(after * C[:, :, None, :]), after[-1]


def delta(S: Array, q: Array, k: Array, v: Array, g: Array, beta: Array) -> tuple[Array, Array]:
    """(1) to (3) for q and k (t b h k), v (t b h v), log decays g (t b h k), beta (t b h)."""
    total, outputs = np.cumsum(g, axis=0), []
    updates: list[Array] = []
    for t in range(len(v)):
        old = np.exp(total[t])[..., None] * S
        ways = [np.exp(total[t] - total[s]) * k[s] for s in range(t)]
        read = (old * k[t][..., None]).sum(axis=2) + sum(
            (k[t] * w).sum(-1)[..., None] * u for w, u in zip(ways, updates, strict=True)
        )
        updates.append(beta[t][..., None] * (v[t] - read))
        ways.append(k[t])
        carried = sum((q[t] * w).sum(-1)[..., None] * u for w, u in zip(ways, updates, strict=True))
        outputs.append((old * q[t][..., None]).sum(axis=2) + carried)
    after = np.exp(total[-1])[..., None] * S
    for s, u in enumerate(updates):
        after = after + (np.exp(total[-1] - total[s]) * k[s])[..., None] * u[:, :, None]
    return np.stack(outputs), after


def shortconv(S: Array, u: Array, C: Array, weight: Array, bias: Array) -> tuple[Array, Array]:
    """(4) for u and C (t b d), weight (t d w), the same for all tokens, and bias (t d).

    One token sums its columns, the newest first, and adds the bias; several start from the bias and add shifted signals, the
    oldest first.
    """
    ext = np.concatenate([np.moveaxis(S, 2, 0), u])
    tokens, width = len(u), weight.shape[2]
    if tokens == 1:
        y = backwards(np.moveaxis(ext, 0, 2) * weight[0]) + bias
    else:
        y = np.broadcast_to(bias[:, None], u.shape)
        for k in range(width):
            y = y + weight[:, None, :, k] * ext[k : k + tokens]
    return C * y, np.moveaxis(ext[tokens:], 0, 2)


def backwards(a: Array) -> Array:
    """The sum over the last axis, starting from its end."""
    out = np.zeros(a.shape[:-1], dtype=a.dtype)
    for i in range(a.shape[-1] - 1, -1, -1):
        out = out + a[..., i]
    return out


def steps(narrow: Callable[[Array], Array], window: Any, params: Any) -> Array:
    """dt with tokens as the first axis."""
    dt = narrow(window.dt)
    dt = dt if params.dt_bias is None else dt + narrow(params.dt_bias)
    dt = np.logaddexp(dt.dtype.type(0), dt) if params.dt_softplus else dt
    low, high = getattr(params, "dt_limit", (0.0, np.inf))
    return np.moveaxis(np.clip(dt, dt.dtype.type(low), dt.dtype.type(high)), 1, 0)


def formed_ssd(narrow: Callable[[Array], Array], window: Any, params: Any) -> tuple[Array, ...]:
    dt, x = steps(narrow, window, params), np.moveaxis(narrow(window.x), 1, 0)
    B, C = (np.moveaxis(np.repeat(narrow(a), x.shape[2] // a.shape[2], axis=2), 1, 0) for a in (window.B, window.C))
    return x, dt * narrow(params.A), B, C, dt


def formed_selective(narrow: Callable[[Array], Array], window: Any, params: Any) -> tuple[Array, ...]:
    dt = steps(narrow, window, params)
    x, B, C = (np.moveaxis(narrow(a), 1, 0) for a in (window.x, window.B, window.C))
    return x, dt[..., None] * narrow(params.A), B, C, dt


def formed_delta(narrow: Callable[[Array], Array], window: Any, params: Any) -> tuple[Array, ...]:
    q, k, v, g, beta = (np.moveaxis(narrow(a), 1, 0) for a in (window.q, window.k, window.v, window.g, window.beta))
    if params.l2_norm:
        eps = q.dtype.type(params.eps)
        q, k = (a / np.sqrt((a * a).sum(axis=-1, keepdims=True) + eps) for a in (q, k))
    q = q * q.dtype.type(q.shape[-1] ** -0.5 if params.scale is None else params.scale)
    q, k = (np.repeat(a, v.shape[2] // a.shape[2], axis=2) for a in (q, k))
    g = g if g.ndim == 4 else np.repeat(g[..., None], k.shape[3], axis=3)
    return q, k, v, g, beta


def formed_shortconv(narrow: Callable[[Array], Array], window: Any, params: Any) -> tuple[Array, ...]:
    B, C, x = (np.moveaxis(narrow(a), 1, 0) for a in (window.B, window.C, window.x))
    weight = narrow(params.weight)
    bias = np.zeros_like(weight[:, 0]) if params.bias is None else narrow(params.bias)
    return B * x, C, *(np.broadcast_to(a, (len(x), *a.shape)) for a in (weight, bias))


def finished(y: Array, window: Any, params: Any) -> Array:
    """Add D x and apply the gate."""
    x, D = window.x.astype(y.dtype), params.D
    if D is not None:
        y = y + (D[:, None] if D.ndim < x.ndim - 2 else D).astype(y.dtype) * x
    if window.z is None:
        return y
    z = window.z.astype(y.dtype)
    with np.errstate(over="ignore"):  # a quotient by infinity is the 0 that it should be
        return y * (z / (1 + np.exp(-z)))


@dataclass(frozen=True)
class Rule:
    """A recurrence: its inputs, tokens first, in the format of the contract; a run of several tokens; the final steps; and a
    run by a scan of pairs, if there is one."""

    name: str
    formed: Callable[..., tuple[Array, ...]]
    part: Callable[..., tuple[Array, Array]]
    finished: Callable[[Array, Any, Any], Array]
    paired: Callable[..., tuple[Array, Array]] | None = None

    @property
    def runs(self) -> dict[Order, Callable[..., tuple[Array, Array]]]:
        """The run of several tokens of each order."""
        found: dict[Order, Callable[..., tuple[Array, Array]]]
        found = {"sequential": self.part, "chunked": self.part, "output_only": self.part}
        return found if self.paired is None else found | {"associative": self.paired}


RULES = Registry(
    "rewriting",
    Rule("ssd", formed_ssd, ssd, finished, partial(ssd, states=scanned)),
    Rule("selective", formed_selective, selective, finished, partial(selective, states=scanned)),
    Rule("delta", formed_delta, delta, lambda y, window, params: y),
    Rule("shortconv", formed_shortconv, shortconv, lambda y, window, params: y),
)
