"""The checkpoint in float64, teacher-forced, and how far an engine with a declared dtype may deviate from it.

x_0 = e embedding[token];  x = x + r layer(a rms(x));  x = x + mlp(rms(x));  logits = h head(rms(x))        (1)

e, a, r and h are the factors of families that have them (Granite's hybrid, Falcon-H1), otherwise 1.

Besides the exact row, M rows are run in which the result of every operation is perturbed by a random part of its rounding,

    fl(a) = a (1 + d),  d uniform in [-k u, k u],     fl(w x) = w x + u |w| |x| d                     (2)

u is the unit roundoff of the declared dtype (that of the state for a state after each token); |w| |x| bounds every partial
sum of a product, by Cauchy and Schwarz. To first order a logit then changes by a sum of independent bounded terms c_i d_i, so
that by Hoeffding's inequality it differs by more than

    bound = 6 sqrt(3) s,    s^2 = mean over the M rows of (noisy - exact)^2, the largest over the logits of a token       (3)

from the exact one with probability below 2 e^-18 = 3e-8. Another order of summation and other library functions change the
d_i, not their size. The bound does not depend on the engine. That roundings are independent is an assumption (Higham and
Mary, SIAM J. Sci. Comput. 41, 2019): a rigorous worst case over eight layers exceeds the logits themselves
(`error_bounds.model`, 558 for a logit of 21 in the Mamba-2 that ships), and would detect nothing.
Source: Parker, Pierce, Eggert, Monte Carlo arithmetic, Computing in Science and Engineering 2 (2000), for (2).
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ssmspec_ref import attention
from ssmspec_ref.attention.latent import LatentLayer
from ssmspec_ref.functions import sigmoid, silu
from ssmspec_ref.layers import mixer as mixers
from ssmspec_ref.layers.layer import RecurrentLayer
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.mixer import MixerState
from ssmspec_ref.layers.norm import rms
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

from .checkpoint import MLP, Attention, Weights

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
NOISY, SURE = 6, 6.0 * 3**0.5
"""M in (3), and the factor there."""
KEPT = 400
"""Number of forward passes to cache."""


class Noise:
    """The perturbation (2) for all rows but the first; without a dtype, none."""

    def __init__(self, dtype: str | None = None, state: str | None = None) -> None:
        self.unit = 0.0 if dtype is None else UNIT[dtype]
        self.sums = 0.0 if dtype is None else min(UNIT[dtype], UNIT["float32"])
        self.state = 0.0 if dtype is None else UNIT[state] if state else self.sums
        self.rng = np.random.default_rng(0)

    def result(self, a: Array, roundings: float = 1.0, unit: float | None = None) -> Array:
        """The result of an operation, perturbed by this many roundings."""
        u = self.unit if unit is None else unit
        if not u:
            return a
        moved = a * (1 + roundings * u * self.rng.uniform(-1, 1, a.shape))
        moved[0] = a[0]
        return moved

    def product(self, y: Array, x: Array, weight: Array) -> Array:
        """y = w x."""
        if not self.unit:
            return y
        size = np.linalg.norm(x, axis=-1)[..., None] * np.linalg.norm(weight, axis=1)
        moved = y + self.sums * size * self.rng.uniform(-1, 1, y.shape)
        moved[0] = y[0]
        return self.result(moved)


@dataclass(frozen=True)
class Rounded(Linear):
    """A map with a perturbed result; uses BLAS, which is ten times as fast as `einsum` here."""

    noise: Any = None

    def apply(self, x: Array) -> Array:
        if self.down is not None:
            x = self.noise.product(x @ self.down.T, x, self.down)
        y = x @ self.weight.T
        return self.noise.product(y if self.bias is None else y + self.bias, x, self.weight)


def noisy(record: Any, noise: Noise) -> Any:
    """A layer with every map in it replaced by `Rounded`."""
    changed = {
        name: Rounded(part.weight, part.bias, part.down, noise) for name, part in vars(record).items() if type(part) is Linear
    }
    return replace(record, **changed)


@dataclass
class Trace:
    """What a block stores for continuing from any token: windows before each token (rows, channels, tokens + width) and
    states, or keys and values."""

    inputs: Array | None = None
    states: list[Array] | None = None
    cache: Any = None

    def at(self, tokens: int, width: int = 0) -> Any:
        """The state of the exact row after this many tokens."""
        if self.cache is not None:
            K, V = self.cache.K[:1, :tokens], self.cache.V[:1, :tokens]
            return attention.KVState(K, V, np.array([K.shape[1]]))  # of an MLP nothing, after any number of tokens
        assert self.inputs is not None
        assert self.states is not None
        return MixerState(self.inputs[:1, :, tokens : tokens + width], self.states[tokens][:1])


@dataclass(frozen=True)
class Forward:
    """Logits (t, v) after each token, the bound on an engine's deviation (t), and what every block stores."""

    logits: Array
    bound: Array
    traces: tuple[Trace, ...]

    def logprobs(self) -> Array:
        top = self.logits.max(axis=1, keepdims=True)
        return self.logits - top - np.log(np.exp(self.logits - top).sum(axis=1, keepdims=True))


class Oracle:
    """A checkpoint in float64, with bounds for a declared dtype."""

    def __init__(self, weights: Weights, dtype: str | None = None, state: str | None = None) -> None:
        self.weights, self.noise = weights, Noise(dtype, state)
        self.quiet = Noise()
        self.kept: OrderedDict[tuple[int, ...], Forward] = OrderedDict()
        self.blocks, self.heads = {}, {}
        for loud, noise in ((True, self.noise), (False, self.quiet)):
            self.blocks[loud] = [
                replace(b, layer=noisy(b.layer, noise), mlp=b.mlp and noisy(b.mlp, noise)) for b in weights.blocks
            ]
            self.heads[loud] = Rounded(weights.head.weight, noise=noise)

    def __call__(self, ids: Sequence[int]) -> Forward:
        """Run these tokens from an empty state. Raises: ValueError for a token outside the vocabulary."""
        key = tuple(ids)
        if key not in self.kept:
            outside = [token for token in key if not 0 <= token < self.weights.vocabulary]
            if outside or not key:
                raise ValueError(f"token {outside[:1]} of {len(key)} is outside the vocabulary of {self.weights.vocabulary}")
            self.kept[key] = self.forward(key)
            while len(self.kept) > KEPT:
                self.kept.popitem(last=False)
        self.kept.move_to_end(key)
        return self.kept[key]

    def forward(self, ids: Sequence[int], states: Sequence[Any] | None = None, at: int | None = None) -> Forward:
        """As `__call__`, or from given states of all blocks, without a bound; `at` is the position of the first token."""
        loud = states is None and bool(self.noise.unit)
        noise = self.noise if loud else self.quiet
        rows = 1 + NOISY * loud
        x = times(self.weights.embedding_factor, np.repeat(self.weights.embedding[np.array([ids])], rows, axis=0), noise)
        traces, read = [], x
        for i, block in enumerate(self.blocks[loud]):
            read = read if block.beside else x
            u = times(block.scale_in, noise.result(rms(read, block.norm), 4), noise)
            state = None if states is None else states[i]
            out, trace = LAYERS[kind(block.layer)](block.layer, u, noise, state, at)
            x = noise.result(x + times(block.factor, out, noise))
            if block.mlp is not None and block.mlp_norm is not None:
                x = noise.result(x + mlp(block.mlp, noise.result(rms(x, block.mlp_norm), 4), noise))
            traces.append(trace)
        logits = self.heads[loud].apply(noise.result(rms(x, self.weights.norm), 4))
        logits = times(self.weights.head_factor, logits, noise)
        spread = np.sqrt(np.mean((logits[1:] - logits[0]) ** 2, axis=0)).max(axis=1) if loud else np.zeros(len(ids))
        return Forward(logits[0], SURE * spread, tuple(traces))

    def states(self, forward: Forward, tokens: int) -> list[Any]:
        """The states of all blocks after this many tokens."""
        return [
            trace.at(tokens, width(block.layer)) for trace, block in zip(forward.traces, self.weights.blocks, strict=True)
        ]


def times(factor: float, x: Array, noise: Noise) -> Array:
    """factor x, rounded; x itself for a factor of 1."""
    return x if factor == 1.0 else noise.result(factor * x)


def kind(layer: Any) -> str:
    return "recurrent" if isinstance(layer, RecurrentLayer) else type(layer).__name__


def width(layer: Any) -> int:
    return layer.mixer.conv.width if isinstance(layer, RecurrentLayer) else 0


def recurrent(layer: RecurrentLayer, u: Array, noise: Noise, state: MixerState | None, at: int | None) -> tuple[Array, Trace]:
    """A convolution and a recurrence, token by token, so that a state is stored, and rounded, after each."""
    inputs, gate = layer.inputs(u)
    rows, mixer = len(u), layer.mixer
    before = mixers.new_state(mixer, rows) if state is None else state
    inputs = replace(inputs, gates=each(lambda a: noise.result(a, 2), inputs.gates))
    window, _ = mixers.window(before.M, replace(inputs, pre=noise.result(inputs.pre, 2)), mixer)
    window = each(lambda a: noise.result(a, 4), window)
    S, states, outputs = before.S, [before.S], []
    for t in range(u.shape[1]):
        y, S = mixer.recurrence.scan(S, each(lambda a, t=t: a[:, t : t + 1], window), mixer.params)
        S = noise.result(noise.result(S, 4, noise.sums), 1, noise.state)
        states.append(S)
        outputs.append(noise.result(y, 4))
    y = np.concatenate(outputs, axis=1)
    out = layer.output(y, noise.result(gate, 4))
    pre = np.concatenate([before.M, inputs.pre.transpose(0, 2, 1)], axis=2)
    return out, Trace(pre[:1], [S[:1] for S in states])


def attended(layer: Attention, u: Array, noise: Noise, state: Any, at: int | None) -> tuple[Array, Trace]:
    """Attention over the stored tokens and those before each token; `at` shifts the positions, not the cache."""
    rows, tokens = u.shape[:2]
    q, k, v = (project.apply(u) for project in (layer.q_proj, layer.k_proj, layer.v_proj))
    q, k, v = q.reshape(rows, tokens, layer.heads, -1), *(x.reshape(rows, tokens, layer.groups, -1) for x in (k, v))
    gate = None
    if layer.gated:
        q, gate = np.split(q, 2, axis=-1)
    q = q if layer.q_norm is None else noise.result(rms(q, layer.q_norm), 4)
    k = k if layer.k_norm is None else noise.result(rms(k, layer.k_norm), 4)
    before = attention.new_state(rows, layer.groups, k.shape[-1]) if state is None else state
    held = before.K.shape[1]
    places = np.arange(tokens)[None] + np.full((rows, 1), held if at is None else at)
    q, k = (noise.result(attention.turned(np.ascontiguousarray(x), places, layer.params), 4) for x in (q, k))
    K, V = np.concatenate([before.K, k], axis=1), np.concatenate([before.V, v], axis=1)
    scale = q.shape[-1] ** -0.5 if layer.params.scale is None else layer.params.scale
    many = layer.heads // layer.groups
    score = scale * np.einsum("bthe, blhe -> bhtl", q, np.repeat(K, many, axis=2))
    score = np.where(np.arange(held + tokens) <= held + np.arange(tokens)[:, None], score, -np.inf)
    weight = np.exp(score - score.max(axis=-1, keepdims=True))
    weight = noise.result(weight / weight.sum(axis=-1, keepdims=True), 8)
    y = noise.result(np.einsum("bhtl, blhe -> bthe", weight, np.repeat(V, many, axis=2)), 4)
    y = y if gate is None else y * noise.result(sigmoid(gate), 4)
    cache = attention.KVState(K[:1], V[:1], np.array([held + tokens]))
    return layer.out_proj.apply(y.reshape(rows, tokens, -1)), Trace(cache=cache)


def latent(layer: LatentLayer, u: Array, noise: Noise, state: Any, at: int | None) -> tuple[Array, Trace]:
    """Latent attention by the keys and values of heads. An engine may round these, or what replaces them over the compressed
    cache (`ssmspec_ref.attention.latent`, (5)): the bound has room for both. The cache is held as keys and as values."""
    rows, tokens, (heads, own, rank) = *u.shape[:2], layer.keys.shape
    both = layer.kv_proj.apply(u)
    c = noise.result(rms(both[..., :rank], layer.norm), 4)
    before = attention.new_state(rows, 1, both.shape[-1]) if state is None else state
    held = np.concatenate([before.K, np.concatenate([c, both[..., rank:]], axis=-1)[:, :, None]], axis=1)
    c, s, end = held[:, :, 0, :rank], held[:, :, 0, rank:], held.shape[1]
    q = layer.q_proj.apply(u).reshape(rows, tokens, heads, -1)
    seen = np.arange(end) <= end - tokens + np.arange(tokens)[:, None]
    y = np.zeros((rows, tokens, heads, layer.values.shape[1]))
    for h, (K, V) in enumerate(zip(layer.keys, layer.values, strict=True)):
        k, v, short = c @ K.T, c @ V.T, q[:, :, h, :own] @ K
        score = q[:, :, h, :own] @ noise.product(k, c, K).transpose(0, 2, 1)
        score += (noise.product(short, q[:, :, h, :own], K.T) - short) @ c.transpose(0, 2, 1)
        score += q[:, :, h, own:] @ s.transpose(0, 2, 1)
        score = np.where(seen, score * (own + layer.shared) ** -0.5, -np.inf)
        w = np.exp(score - score.max(axis=-1, keepdims=True))
        w = noise.result(w / w.sum(axis=-1, keepdims=True), 8)
        z = w @ c
        y[:, :, h] = noise.result(w @ noise.product(v, c, V), 4)
        y[:, :, h] += noise.product(noise.result(z, 4) @ V.T, z, V) - z @ V.T
    cache = attention.KVState(held[:1], held[:1], np.array([end]))
    return layer.out_proj.apply(y.reshape(rows, tokens, -1)), Trace(cache=cache)


def mlp(layer: MLP, u: Array, noise: Noise) -> Array:
    up = layer.up.apply(u)
    gate = None if layer.gate is None else times(layer.gate_factor, layer.gate.apply(u), noise)
    hidden = np.maximum(up, 0) ** 2 if gate is None else silu(gate) * up
    return times(layer.factor, layer.down.apply(noise.result(hidden, 6)), noise)


def alone(layer: MLP, u: Array, noise: Noise, state: Any, at: int | None) -> tuple[Array, Trace]:
    """A block that is only an MLP; it stores nothing."""
    return mlp(layer, u, noise), Trace(cache=attention.new_state(1, 1, 1))


LAYERS: dict[str, Callable[..., tuple[Array, Trace]]] = {
    "recurrent": recurrent,
    "Attention": attended,
    "LatentLayer": latent,
    "MLP": alone,
}
