"""Norms, gated norms, linear maps and attention on pairs: the token-by-token parts of a layer."""

from dataclasses import replace
from typing import Any

import numpy as np

from ..linear import Linear
from ..norm import GatedNorm, Norm
from ..shapes import Array, Scale
from .arithmetic import Approx, constant, relative_error, sum_of_products, unit
from .functions import exp, rsqrt, sigmoid, silu


def linear(x: Approx, layer: Linear) -> Approx:
    """weight (down x) + bias: a matrix product in any order of summation; between two of them the value is stored as outputs.

    Raises: ParameterError where so many roundings leave no bound.
    """
    c = x.contract
    if layer.down is not None:
        x = sum_of_products(("...i, oi -> ...o", x, constant(layer.down, c)), matmuls=1).store(c.io)
    terms: list[tuple[Any, ...]] = [("...i, oi -> ...o", x, constant(layer.weight, c))]
    if layer.bias is not None:
        terms.append(("o -> o", constant(layer.bias, c)))
    return sum_of_products(*terms, matmuls=1)


def l2_norm(x: Approx, eps: float) -> Approx:
    """x / sqrt(sum x^2 + eps) over the last axis."""
    squares = sum_of_products(("...i, ...i -> ...", x, x))
    return x * rsqrt(squares + eps)[..., None]


def rms(x: Approx, weight: Scale, eps: float, groups: int = 1) -> Approx:
    """weight x / sqrt(mean x^2 + eps) over each of `groups` equal parts of the last axis.

    The normed value is charged with being stored as outputs are, before the weight: many layers cast there.
    """
    shape = x.value.shape
    parts = x.map(lambda a: a.reshape(*shape[:-1], groups, -1))
    squares = sum_of_products(("...i, ...i -> ...", parts, parts))
    mean = squares * constant(1 / parts.value.shape[-1], x.contract)
    normed = (parts * rsqrt(mean + eps)[..., None]).map(lambda a: a.reshape(shape))
    return normed.store(x.contract.io) * constant(weight, x.contract)


def norm(x: Approx, layer: Norm) -> Approx:
    """`ssmspec_ref.norm.rms`."""
    return rms(x, layer.weight, layer.eps)


def gated(y: Approx, z: Approx, layer: GatedNorm) -> Approx:
    """`ssmspec_ref.norm.gated`: the norm and the gate in the layer's order."""
    act = {"silu": silu, "sigmoid": sigmoid}[layer.gate](z)
    if layer.norm_first:
        return rms(y, layer.weight, layer.eps, layer.groups) * act
    return rms(y * act, layer.weight, layer.eps, layer.groups)


def attention(q: Approx, k: Approx, v: Approx, mask: Array, scale: float, blocks: int = 1) -> Approx:
    """softmax(scale q k^T) v over the positions of `mask` (b t l); h query heads share g heads of keys and values.

    s = scale q k^T (1)    p = exp(s - m) (2)    o = sum p v / sum p (3)

    The maximum m cancels in (3) however wrong it is, but s - m rounds, by u of the range R of the scores, and 2^(x log2 e)
    forms s log2 e before it subtracts: 2 u |s| more. An online softmax over `blocks` blocks rescales the sums before it at
    each block, by factors exp(m - m') whose exponents add up to R at most: r + u for each block and 2 u R in all.

    Raises: ParameterError where so many roundings leave no bound.
    Source: Dao et al., arXiv:2205.14135, algorithm 1 (online softmax).
    """
    c = q.contract
    each = q.value.shape[2] // k.value.shape[2]
    k, v = (x.map(lambda a: np.repeat(a, each, axis=2)) for x in (k, v))
    s = sum_of_products(("bthe, blhe -> bthl", q, k), matmuls=1) * constant(scale, c)  # (1)
    seen = mask[:, :, None, :]
    low, high = (f(np.where(seen, s.value, fill), axis=3, keepdims=True) for f, fill in ((np.min, np.inf), (np.max, -np.inf)))
    spread = np.where(np.isfinite(high), high - low, 0.0) + 2 * s.error.max(axis=3, keepdims=True)
    share = 3 * unit(c) * spread + (2 * unit(c) * s.size if c.exp == "ex2" else 0.0) + blocks * (relative_error(c) + unit(c))
    shifted = replace(s, value=np.where(seen, s.value - high, -np.inf), error=np.where(seen, s.error + share, 0.0))
    p = exp(replace(shifted, value=np.where(seen, shifted.value, 0.0))).where(seen)
    total = sum_of_products(("bthl -> bth", p))
    read = sum_of_products(("bthl, blhe -> bthe", p, v), matmuls=1)
    return read / total[..., None]
