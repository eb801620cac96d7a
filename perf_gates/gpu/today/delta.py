"""The gated delta rule and KDA between the projections of a layer: inputs, float64, and our launches.

    c = conv(q | k | v);  g and beta from their projections;  o by the recurrence;  y = rms(o) act(z)

A layer is all between two projections: convolution, gates, recurrence, gated norm. Ours are three launches, as the
engine makes them; the recurrence forms the gates. In a window that may be rejected, the convolution's own state is advanced
later, by one launch for all layers, which is not timed here; nor is SGLang's copy of the accepted states.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perf_gates.gpu.judge.call import Call, launcher, pulled
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.delta import DeltaParams, DeltaWindow
from ssmspec_ref.error_bounds.arithmetic import Approx, constant
from ssmspec_ref.layers.norm import GatedNorm
from ssmspec_ref.shapes import Array

from .side import Pairs, Side, blank, bytes_of, copies_of, ours, slots_of

WIDTH, EPS = 4, 1e-6
NARROW = 8
"""Up to this many rows the engine takes `conv_tree` for a window that it does not keep."""


@dataclass(frozen=True)
class Rule:
    """What distinguishes the layers: a decay for each key channel or for each head, its lower bound, the output gate."""

    channel: bool = False
    bound: float | None = None
    gate: str = "silu"


class Layer:
    """The inputs of a case, the same for every side, and their float64."""

    def __init__(self, call: Call, sizes: tuple[int, int, int, int], batch: int, tokens: int, rule: Rule) -> None:
        self.call, self.sizes, self.batch, self.tokens, self.rule, self.device = call, sizes, batch, tokens, rule, call.device
        g, h, k, v = sizes
        self.pieces, self.width = (g * k, g * k, h * v), 2 * g * k + h * v
        each = (h, k) if rule.channel else (h,)
        self.qkv, self.z = call.normal(batch, tokens, self.width), call.normal(batch, tokens, h, v)
        self.a, self.b = call.normal(batch, tokens, *each), call.normal(batch, tokens, h)
        self.taps = call.normal(self.width, WIDTH, scale=0.5)
        self.A_log = call.uniform(-3.0, 0.0, h)
        self.A, self.bias = -self.A_log.exp(), call.normal(*each, form="fp32", mean=-1.0)
        self.weight = call.normal(v, form="fp32", scale=0.1, mean=1.0)
        self.rows, self.heads = call.sample(batch, 2) if batch > 1 else call.sample(1, 1), call.sample(h, 2)
        self.keys = self.heads // (h // g)

    # --- the judged part ---

    def held(self, pool: Tensor, slots: Tensor, turned: bool = False) -> Array:
        """The judged part of the states of some slots of the rows, (.., k, v); `turned`: they are stored (.., v, k)."""
        found = pulled(
            pool, slots[torch.as_tensor(self.rows, device=slots.device)].flatten().cpu().numpy(), self.heads, axis=1
        )
        return found.swapaxes(-1, -2) if turned else found

    def channels(self) -> Array:
        """The channels of the convolution that the judged heads read: q, k, v of each."""
        (_, _, k, v), (q_width, k_width, _) = self.sizes, self.pieces
        of_keys = (self.keys[:, None] * k + np.arange(k)).ravel()
        of_values = (self.heads[:, None] * v + np.arange(v)).ravel()
        return np.concatenate([of_keys, q_width + of_keys, q_width + k_width + of_values])

    def columns(self, pool: Tensor, slots: Tensor) -> Array:
        """The last three columns of the judged windows, pool (s, c, w), with a fourth before them that nobody reads."""
        found = pulled(pool, slots[torch.as_tensor(self.rows, device=slots.device)].cpu().numpy(), self.channels(), axis=1)
        return np.concatenate([np.zeros_like(found[..., :1]), found[..., 1 - WIDTH :]], axis=-1)

    def read(self, out: Tensor) -> Array:
        return pulled(out, self.rows, self.heads)

    def gates(self, contract: NumericContract, given: bool) -> tuple[Approx, Approx]:
        """g and beta; `given`: A is an argument, not formed from A_log in the kernel."""
        a, b = (eb.exact(pulled(x, self.rows, self.heads), contract) for x in (self.a, self.b))
        bias = eb.exact(pulled(self.bias, self.heads), contract)
        raw = pulled(self.A if given else self.A_log, self.heads)
        rate = eb.exact(-raw, contract) if given else eb.exp(eb.exact(raw, contract))
        rate = rate[:, None] if self.rule.channel else rate
        if self.rule.bound is not None:
            return constant(self.rule.bound, contract) * eb.sigmoid(rate * (a + bias)), eb.sigmoid(b)
        return -(rate * eb.softplus(a + bias)), eb.sigmoid(b)

    def recurrence(
        self,
        S: Array,
        c: Approx,
        contract: NumericContract,
        given: bool,
        every: bool,
        inexact: dict[str, Array] | None = None,
    ) -> tuple[Approx, Approx]:
        """Outputs and states, the last or every one, from what the convolution gave for the judged channels."""
        (_, _, k, v), n = self.sizes, len(self.heads)
        begins = (0, k), (n * k, k), (2 * n * k, v)
        q, key, value = (c[..., at : at + n * width].map(partial(_of_heads, n)) for at, width in begins)
        g, beta = self.gates(contract, given)
        named = {"q": q, "k": key, "v": value, "g": g, "beta": beta}
        window = DeltaWindow(**{name: x.value for name, x in named.items()})
        errors = {name: x.error for name, x in named.items()} | (inexact or {})
        return (eb.delta.states if every else eb.delta.scan)(S, window, DeltaParams(), contract, inexact=errors)

    def whole(self, S: Array, M: Array, contract: NumericContract, given: bool, every: bool) -> Pairs:
        """The outputs of a layer after its norm, and its states."""
        taps = ConvParams(pulled(self.taps, self.channels()))
        u = pulled(self.qkv, self.rows, self.channels())
        c, _ = eb.conv.scan(M, u, taps, contract)
        o, after = self.recurrence(S, c, contract, given, every)
        z = eb.exact(pulled(self.z, self.rows, self.heads), contract)
        norm = GatedNorm(self.weight.double().cpu().numpy(), eps=EPS, norm_first=True, gate=self.rule.gate)  # type: ignore[arg-type]
        return eb.gated(o, z, norm).store(contract.io), after

    def bare(self, S: Array, contract: NumericContract, given: bool, every: bool = False) -> Pairs:
        """The outputs of the recurrence alone, from q, k and v as they are."""
        return self.recurrence(S, eb.exact(pulled(self.qkv, self.rows, self.channels()), contract), contract, given, every)

    # --- arguments ---

    def split(self, c: Tensor) -> tuple[Tensor, ...]:
        """q, k, v (b, t, heads, channels) of the convolution's outputs (b, t, c)."""
        g, h, k, v = self.sizes
        sizes = ((g, k), (g, k), (h, v))
        return tuple(x.unflatten(-1, s) for x, s in zip(c.split(list(self.pieces), dim=-1), sizes, strict=True))

    def raw(self) -> dict[str, Any]:
        """The gates as arguments of our launchers."""
        bound = {} if self.rule.bound is None else {"lower_bound": self.rule.bound}
        return {"g": self.a, "beta": self.b, "A": self.A, "dt_bias": self.bias} | bound

    def like(self) -> Tensor:
        return torch.empty_like(self.z)

    def bytes(self, keep: bool) -> int:
        """The traffic of the recurrence, by which states rotate."""
        g, h, k, v = self.sizes
        name = f"{'kda' if self.rule.channel else 'delta'}_{'snapshots' if keep else 'scan'}"
        return bytes_of(name, self.batch, self.tokens, g, h, k, v)


def _of_heads(n: int, x: Array) -> Array:
    return x.reshape(*x.shape[:-1], n, -1)


@dataclass
class Pools:
    """Rotating states and windows of a side: `slots` (copies, b, each)."""

    S: Tensor
    M: Tensor
    slots: Tensor

    @classmethod
    def drawn(cls, d: Layer, each: int, columns: int, keep: bool, turned: bool = True, dense: bool = True) -> "Pools":
        """`each` states for a row; `turned`: (v, k), as engines store them; `dense`: channels of a column lie together."""
        _, h, k, v = d.sizes
        copies = copies_of(d.bytes(keep), 4 * d.batch * each * h * k * v)
        slots = slots_of(copies, d.batch, d.device, each)
        count = 1 + slots.numel()
        S = torch.randn(count, h, *((v, k) if turned else (k, v)), device=d.device)
        M = torch.randn(count, *((columns, d.width) if dense else (d.width, columns)), device=d.device).bfloat16()
        return cls(S, M.transpose(1, 2) if dense else M, slots)


# --- ours ---


def bare_ours(d: Layer) -> Side:
    """One token, from raw gates."""
    contract, name = ours(), "kda_scan" if d.rule.channel else "delta_scan"
    pools = Pools.drawn(d, 1, WIDTH, False, turned=False, dense=False)
    index = pools.slots[..., 0]
    written, outs = blank(d.like(), len(index))
    parts = dict(zip("qkv", d.split(d.qkv), strict=True))
    return Side(
        lambda i: launcher(name)(pools.S, **parts, **d.raw(), slots=index[i], out=outs[i]), written, [pools.S],
        lambda: (d.held(pools.S, index[0]),), lambda S: d.bare(S, contract, True), lambda: d.read(outs[0]),
        lambda: d.held(pools.S, index[0]), contract,
    )  # fmt: skip


def layer_ours(d: Layer) -> Side:
    """One token: convolution, recurrence, norm."""
    contract, name = ours(), "kda_scan" if d.rule.channel else "delta_scan"
    pools = Pools.drawn(d, 1, WIDTH, False, turned=False, dense=False)
    index, c, o = pools.slots[..., 0], torch.empty_like(d.qkv), d.like()
    written, outs = blank(d.like(), len(index))

    def launch(i: int) -> None:
        launcher("conv_window")(pools.M, d.qkv, d.taps, slots=index[i], out=c)
        launcher(name)(pools.S, **dict(zip("qkv", d.split(c), strict=True)), **d.raw(), slots=index[i], out=o)
        launcher("gated_norm")(o, d.z, d.weight, eps=EPS, norm_first=True, gate=d.rule.gate, out=outs[i])

    return Side(
        launch, written, [pools.S, pools.M], lambda: (d.held(pools.S, index[0]), d.columns(pools.M, index[0])),
        lambda S, M: d.whole(S, M, contract, True, False), lambda: d.read(outs[0]), lambda: d.held(pools.S, index[0]),
        contract, 3,
    )  # fmt: skip


def window_ours(d: Layer) -> Side:
    """A window with the state after every token, all of it to be accepted in part later."""
    contract, name = ours(), "kda_snapshots" if d.rule.channel else "delta_snapshots"
    pools = Pools.drawn(d, 1 + d.tokens, WIDTH, True, turned=False, dense=False)
    first, places = pools.slots[..., 0].contiguous(), pools.slots[..., 1:].contiguous()
    c, o = torch.empty_like(d.qkv), d.like()
    written, outs = blank(d.like(), len(first))

    def launch(i: int) -> None:
        if d.batch <= NARROW:
            launcher("conv_tree")(pools.M, d.qkv, None, d.taps, slots=first[i], out=c)
        else:
            launcher("conv_window")(pools.M, d.qkv, d.taps, slots=first[i], keep="none", out=c)
        parts = dict(zip("qkv", d.split(c), strict=True))
        launcher(name)(pools.S, **parts, **d.raw(), places=places[i], slots=first[i], out=o)
        launcher("gated_norm")(o, d.z, d.weight, eps=EPS, norm_first=True, gate=d.rule.gate, out=outs[i])

    return Side(
        launch, written, [pools.S], lambda: (d.held(pools.S, first[0]), d.columns(pools.M, first[0])),
        lambda S, M: d.whole(S, M, contract, True, True), lambda: d.read(outs[0]), lambda: kept(d, pools.S, places[0]),
        contract, 3,
    )  # fmt: skip


def kept(d: Layer, pool: Tensor, places: Tensor, turned: bool = False) -> Array:
    """The judged states after every token, (rows, t, heads, k, v)."""
    found = d.held(pool, places, turned)
    return found.reshape(len(d.rows), d.tokens, *found.shape[1:])
