"""Random layers of tiny models: every option of a published layer, in sizes that differ."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from ..attention import AttentionParams
from ..attention.layer import AttentionLayer
from ..conv import ConvParams
from ..delta import DeltaParams
from ..layers.layer import DeltaLayer, Mamba1Layer, Mamba2Layer
from ..layers.linear import Linear
from ..layers.mixer import DeltaMixer, SelectiveMixer, SSDMixer
from ..layers.norm import GatedNorm, Norm
from ..layers.rotary import frequencies
from ..selective import SelectiveParams
from ..shapes import Array
from ..ssd import SSDParams
from . import Layer

CHANNELS = 10  # of the residual stream
Draw: TypeAlias = np.random.Generator
Make: TypeAlias = Callable[[Draw], Layer]


def linear(rng: Draw, outputs: int, inputs: int, bias: bool = False, rank: int | None = None) -> Linear:
    """A map that preserves the scale of its input, through a low rank if `rank` is given."""
    width = inputs if rank is None else rank
    down = None if rank is None else rng.normal(0, inputs**-0.5, (rank, inputs))
    return Linear(rng.normal(0, width**-0.5, (outputs, width)), rng.normal(0, 0.3, outputs) if bias else None, down)


def norm(rng: Draw, channels: int) -> Norm:
    return Norm(rng.uniform(0.5, 1.5, channels), 1e-5)


def conv(rng: Draw, channels: int, width: int, bias: bool = True) -> ConvParams:
    return ConvParams(rng.normal(0, width**-0.5, (channels, width)), rng.normal(0, 0.3, channels) if bias else None)


def decay(rng: Draw, shape: tuple[int, ...] | int) -> Array:
    """A from -4 to -0.02: some heads forget within a token, others carry a large state."""
    return -np.exp(rng.uniform(-4.0, 1.4, shape))


def mamba1(rng: Draw, normed: bool) -> Layer:
    d, n, rank, width = 7, 3, 2, 3
    params = SelectiveParams(decay(rng, (d, n)), rng.normal(0, 1, d), rng.normal(-1, 1, d))
    norms = (norm(rng, rank), norm(rng, n), norm(rng, n)) if normed else (None, None, None)
    x_proj, dt_proj = rng.normal(0, d**-0.5, (rank + 2 * n, d)), rng.normal(0, 1, (d, rank))
    mix = SelectiveMixer(conv(rng, d, width), params, x_proj, dt_proj, *norms)
    return Mamba1Layer(mix, linear(rng, 2 * d, CHANNELS), linear(rng, CHANNELS, d))


def mamba2(rng: Draw, normed: bool) -> Layer:
    h, p, n, g, width = 4, 3, 5, 2, 4 if normed else 2
    D = rng.normal(0, 1, h if normed else (h, p))
    limit = (0.0, float("inf")) if normed else (0.01, 1.5)
    params = SSDParams(decay(rng, h), D, rng.normal(-1, 1, h), dt_limit=limit)
    channels = h * p + 2 * g * n
    mix = SSDMixer(conv(rng, channels, width), params, p, n, g)
    total = h * p + channels + h
    gate = GatedNorm(rng.uniform(0.5, 1.5, h * p), 1e-5, groups=g) if normed else None
    scale = None if normed else rng.uniform(0.5, 1.5, total)
    in_proj, out_proj = linear(rng, total, CHANNELS, bias=True), linear(rng, CHANNELS, h * p, bias=True)
    return Mamba2Layer(mix, in_proj, out_proj, gate, 1.0 if normed else 0.7, scale)


def delta(rng: Draw, per_channel: bool, lower_bound: float | None = None) -> Layer:
    h, g, k, v, width = 4, 4 if per_channel else 2, 3, 2, 4
    channels = 2 * g * k + h * v
    mix = DeltaMixer(conv(rng, channels, width, bias=False), DeltaParams(), g, h, k, v)
    bias = (h, k) if per_channel else (h,)
    rank = 3 if per_channel else None
    return DeltaLayer(
        mix,
        linear(rng, channels, CHANNELS),
        linear(rng, h * v, CHANNELS, rank=rank),
        linear(rng, int(np.prod(bias)), CHANNELS, rank=rank),
        linear(rng, h, CHANNELS),
        decay(rng, h),
        rng.normal(-1, 1, bias),
        GatedNorm(rng.uniform(0.5, 1.5, v), 1e-5, norm_first=True, gate="sigmoid" if per_channel else "silu"),
        linear(rng, CHANNELS, h * v),
        beta_scale=1.0 if per_channel else 2.0,
        lower_bound=lower_bound,
    )


def attention(rng: Draw, rotary: bool) -> Layer:
    h, g, channels = 4, 2, 6
    params = AttentionParams(frequencies=frequencies(4)) if rotary else AttentionParams(scale=0.7)
    q_proj, k_proj, v_proj = (linear(rng, count * channels, CHANNELS) for count in (h, g, g))
    return AttentionLayer(params, q_proj, k_proj, v_proj, linear(rng, CHANNELS, h * channels), h, g)
