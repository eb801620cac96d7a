"""Norms, gated norms, linear maps and attention on pairs: the token-wise parts of a layer."""

from dataclasses import replace
from typing import Any

import numpy as np

from ..layers.linear import Linear
from ..layers.norm import GatedNorm, Norm
from ..shapes import Array, Scale
from .arithmetic import Approx, constant, gamma, relative_error, sum_of_products, unit
from .functions import exp, rsqrt, sigmoid, silu


def linear(x: Approx, layer: Linear) -> Approx:
    """weight (down x) + bias: a matrix product in any order of summation; between two products the output format is used.

    Raises: ParameterError if there are too many roundings for a bound to exist.
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
    return _divided_by_root(x, squares + eps, 1.0)


def rms(x: Approx, weight: Scale, eps: float, groups: int = 1) -> Approx:
    """weight x / sqrt(mean x^2 + eps) over each of `groups` equal parts of the last axis.

    The mean is the sum divided by the number of channels, or multiplied by its inverse, whichever has the larger error. The
    normed value is rounded to the output format before the weight, because many layers cast there.
    """
    shape = x.value.shape
    parts = x.map(lambda a: a.reshape(*shape[:-1], groups, -1))
    channels = parts.value.shape[-1]
    squares = sum_of_products(("...i, ...i -> ...", parts, parts))
    mean, divided = squares * constant(1 / channels, x.contract), squares / constant(channels, x.contract)
    mean = replace(mean, error=np.maximum(mean.error, divided.error))
    normed = _divided_by_root(parts, mean + eps, channels**0.5).map(lambda a: a.reshape(shape))
    return normed.store(x.contract.io) * constant(weight, x.contract)


def _divided_by_root(x: Approx, squares: Approx, largest: float) -> Approx:
    """x / sqrt(squares), where `squares` holds the squares of x, so that no entry exceeds `largest`, whatever the error of x.

    The error is therefore at most |value| + largest, plus the roundings of the sum, the root and the product. This also helps
    if the relative error of the squares is so large (here above 3/4) that their root gives no information.
    """
    share = squares.error / squares.value
    known = replace(squares, error=np.minimum(squares.error, 0.75 * squares.value))
    result = x * rsqrt(known)[..., None]
    roundings = gamma(np.array(x.value.shape[-1] + 4.0), x.contract)
    limit = np.abs(result.value) + largest * (1 + 3 * relative_error(x.contract)) / np.sqrt(1 - roundings)
    return replace(result, error=np.where(share[..., None] > 0.75, limit, np.minimum(result.error, limit)))


def norm(x: Approx, layer: Norm) -> Approx:
    """`ssmspec_ref.layers.norm.rms`."""
    return rms(x, layer.weight, layer.eps)


def gated(y: Approx, z: Approx, layer: GatedNorm) -> Approx:
    """`ssmspec_ref.layers.norm.gated`: the norm and the gate, in the layer's order."""
    act = {"silu": silu, "sigmoid": sigmoid}[layer.gate](z)
    if layer.norm_first:
        return rms(y, layer.weight, layer.eps, layer.groups) * act
    return rms(y * act, layer.weight, layer.eps, layer.groups)


def attention(q: Approx, k: Approx, v: Approx, mask: Array, scale: float, blocks: int = 1) -> Approx:
    """softmax(scale q k^T) v over the positions of `mask` (b t l); h query heads share g heads of keys and values.

    s = scale q k^T (1)    p = exp(s - m) (2)    o = sum p v / sum p (3)

    The maximum m cancels in (3) whatever its error, but s - m is rounded, by u of the range R of the scores, and 2^(x log2 e)
    computes s log2 e before it subtracts: 2 u |s| more. An online softmax over `blocks` blocks rescales its sums at each
    block, by factors exp(m - m') whose exponents add up to at most R: r + u for each block and 2 u R in total. A plain
    softmax rescales nothing; if it divides p by its sum before it reads v, every term has an error of r instead.

    Raises: ParameterError if there are too many roundings for a bound to exist.
    Source: Dao et al., arXiv:2205.14135, algorithm 1 (online softmax).
    """
    c, r = q.contract, relative_error(q.contract)
    each = q.value.shape[2] // k.value.shape[2]
    k, v = (x.map(lambda a: np.repeat(a, each, axis=2)) for x in (k, v))
    s = sum_of_products(("bthe, blhe, -> bthl", q, k, constant(scale, c)), matmuls=1)  # (1)
    seen = np.broadcast_to(mask[:, :, None, :], s.value.shape)
    high = np.max(s.value, axis=3, keepdims=True, where=seen, initial=-np.inf)
    spread = np.where(np.isfinite(high), high - np.min(s.value, axis=3, keepdims=True, where=seen, initial=np.inf), 0.0)
    spread = spread + 2 * np.max(s.error, axis=3, keepdims=True)
    share = 3 * unit(c) * spread + (blocks + 1) * (r + unit(c)) + (2 * unit(c) * s.size if c.exp == "ex2" else 0.0)
    shifted = np.where(seen, s.value - np.where(np.isfinite(high), high, 0.0), 0.0)
    p = exp(Approx(shifted, s.error + share, c)).where(seen)  # (2)
    total = sum_of_products(("bthl -> bth", p))
    return sum_of_products(("bthl, blhe -> bthe", p, v), matmuls=1) / total[..., None]  # (3)
