"""Bounds for a whole language model: the error of each block enters the next one.

x_0 = embedding[token], exact                                              (1)
x   = x + layer(rms(x)), then x + mlp(rms(x)) if the block has an MLP      (2)
logits = head(rms(x))                                                      (3)

A path may read a window in one order of evaluation and write the state in another. A block gets the largest error of the
given orders, so that the error passed to the next block is covered for each of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ..attention import KVState
from ..attention.layer import AttentionLayer
from ..checks import checked
from ..contract import NumericContract
from ..layers.mixer import MixerState
from ..model import MLP, Layer, LayerState, Model, ModelState
from ..shapes import Array, Lengths, Mask, Tokens
from . import layer as recurrent
from .arithmetic import Approx, exact, relative_error, unit
from .functions import silu
from .norms import attention, linear, norm

Errors: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True)
class Bounds:
    """The logits after every token, and each layer's state by name: M and S, or K and V of a cache without dead slots."""

    logits: Approx
    layers: tuple[dict[str, Approx], ...]


@checked
def scan(
    state: ModelState,
    tokens: Tokens,
    model: Model,
    contracts: Sequence[NumericContract],
    live: Mask | None = None,
    inexact: Sequence[Errors] | None = None,
) -> Bounds:
    """Logits and state of `model.scan` with their bounds, (1) to (3); each block may follow any of the contracts.

    Tokens that are not live come after those that are. `inexact` gives the errors of each layer's state: "M" and "S", or "K"
    and "V".

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """
    live = np.ones(tokens.shape, dtype=bool) if live is None else live
    x = exact(model.embedding[tokens], contracts[0])  # (1)
    layers = []
    for block, before, wrong in zip(model.blocks, state, inexact or [{}] * len(state), strict=True):
        u = norm(x, block.norm)
        out, after = _largest([_layer(block.layer, before, wrong, replace(u, contract=c), live) for c in contracts])
        x = x + out  # (2)
        if block.mlp is not None and block.mlp_norm is not None:
            x = x + _mlp(norm(x, block.mlp_norm), block.mlp)
        layers.append(after)
    return Bounds(linear(norm(x, model.norm), model.head), tuple(layers))  # (3)


def _layer(layer: Layer, state: LayerState, wrong: Errors, u: Approx, live: Mask) -> tuple[Approx, dict[str, Approx]]:
    if isinstance(layer, AttentionLayer):
        assert isinstance(state, KVState)
        return _attention(layer, state, wrong, u, live)
    assert isinstance(state, MixerState)
    out, M, S = recurrent.scan(state, u.value, layer, u.contract, live, {"u": u.error, **wrong})
    return out, {"M": M, "S": S}


def _largest(bounds: Sequence[tuple[Approx, dict[str, Approx]]]) -> tuple[Approx, dict[str, Approx]]:
    """The first of several bounds of the same values, with the largest of their errors."""
    outs, states = zip(*bounds, strict=True)
    return _widest(outs), {name: _widest([state[name] for state in states]) for name in states[0]}


def _widest(pairs: Sequence[Approx]) -> Approx:
    return replace(pairs[0], error=np.max([pair.error for pair in pairs], axis=0))


def _mlp(x: Approx, mlp: MLP) -> Approx:
    return linear(silu(linear(x, mlp.gate)) * linear(x, mlp.up), mlp.down)


def _attention(
    layer: AttentionLayer, state: KVState, wrong: Errors, u: Approx, live: Mask
) -> tuple[Approx, dict[str, Approx]]:
    """Attention over the committed slots and the window, and the cache with the window's slots."""
    c, tokens = u.contract, u.value.shape[1]
    q, k, v = (
        _by_heads(linear(u, projection), heads)
        for projection, heads in ((layer.q_proj, layer.heads), (layer.k_proj, layer.groups), (layer.v_proj, layer.groups))
    )
    q, k = (_turned(x, state.length, layer) for x in (q, k))
    scale = layer.channels**-0.5 if layer.params.scale is None else layer.params.scale
    old = {name: exact(getattr(state, name), c, wrong.get(name)) for name in ("K", "V")}
    K, V = _joined([old["K"], k]), _joined([old["V"], v])
    held = np.arange(state.K.shape[1]) < state.length[:, None]
    causal = np.tile(np.tri(tokens, dtype=bool), (len(held), 1, 1))
    seen = np.concatenate([np.repeat(held[:, None], tokens, axis=1), causal], axis=2)
    y = attention(q * scale, K, V, seen, 1.0)
    real = np.concatenate([held, live], axis=1)
    cache = {name: x.map(lambda a: _packed(a, real)) for name, x in (("K", K), ("V", V))}
    return linear(y.map(lambda a: a.reshape(*a.shape[:2], -1)), layer.out_proj), cache


def _by_heads(x: Approx, heads: int) -> Approx:
    return x.map(lambda a: a.reshape(*a.shape[:2], heads, -1))


def _joined(parts: Sequence[Approx], axis: int = 1) -> Approx:
    value, error = (np.concatenate([getattr(part, name) for part in parts], axis) for name in ("value", "error"))
    return Approx(value, error, parts[0].contract)


def _packed(slots: Array, real: Mask) -> Array:
    """The real slots of each row, moved to the front; 0 after them."""
    packed = np.zeros((len(slots), int(real.sum(axis=1).max()), *slots.shape[2:]))
    for b, mask in enumerate(real):
        packed[b, : mask.sum()] = slots[b, mask]
    return packed


def _turned(x: Approx, length: Lengths, layer: AttentionLayer) -> Approx:
    """Rotary embedding: the angle is rounded once, and its cosine and sine are library functions."""
    if layer.params.frequencies is None:
        return x
    c, f = x.contract, len(layer.params.frequencies)
    at = length[:, None] + np.arange(x.value.shape[1])
    angle = (at[..., None] * layer.params.frequencies)[:, :, None, :]
    wrong = unit(c) * np.abs(angle) + relative_error(c)
    cos, sin = (Approx(value, wrong, c) for value in (np.cos(angle), np.sin(angle)))
    first, second = x[..., :f], x[..., f : 2 * f]
    return _joined([first * cos - second * sin, second * cos + first * sin, x[..., 2 * f :]], axis=3)
