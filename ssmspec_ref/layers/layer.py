"""Recurrent layers, residual stream in and out: a mixer between two projections.

    inputs, z = layer.inputs(u)                token-wise: the mixer's inputs, and the gate         (1)
    y         = mixer(inputs)                  the convolution and the recurrence (`mixer`)         (2)
    out       = layer.output(y, z)             token-wise: gate, norm, output projection            (3)

Only (2) has a state, so a backtracking path replaces (2) and leaves (1) and (3) unchanged.
"""

from dataclasses import dataclass

import numpy as np

from .. import delta
from ..checks import checked
from ..errors import ParameterError, ShapeMismatch
from ..functions import sigmoid, silu
from ..records import Record, masked
from ..shapes import Array, HeadKeyParam, HeadParam, Mask, Residual, Scale
from . import mixer
from .linear import Linear
from .mixer import DeltaGates, DeltaMixer, Mixer, MixerInputs, MixerState, SelectiveGates, SelectiveMixer, SSDGates, SSDMixer
from .norm import GatedNorm, gated


@dataclass(frozen=True)
class RecurrentLayer(Record):
    """A mixer between its projections (1) and (3)."""

    mixer: Mixer

    def inputs(self, u: Residual) -> tuple[MixerInputs, Array]:
        """The mixer's inputs, and the gate (1)."""
        raise NotImplementedError

    def output(self, y: Array, gate: Array) -> Residual:
        """Gate, norm and output projection (3)."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mamba2Layer(RecurrentLayer):
    """Mamba-2: one input projection, to z | x B C | dt; a gated norm, or only y silu(z); one output projection.

    Falcon-H1 scales the input and every channel of the projection (`input_multiplier`, `multipliers` over z | x B C | dt).
    Source: arXiv:2405.21060, section 7.
    """

    mixer: SSDMixer
    in_proj: Linear
    out_proj: Linear
    norm: GatedNorm | None = None
    input_multiplier: float = 1.0
    multipliers: Scale | None = None

    def inputs(self, u: Residual) -> tuple[MixerInputs, Array]:
        heads = self.mixer.params.A.shape[0]
        pieces = [heads * self.mixer.channels, self.mixer.conv.weight.shape[0], heads]
        projected = self.in_proj.apply(self.input_multiplier * u)
        if self.multipliers is not None:
            projected = projected * self.multipliers
        z, xBC, dt = split(projected, pieces)
        return MixerInputs(xBC, SSDGates(dt)), z

    def output(self, y: Array, gate: Array) -> Residual:
        flat = y.reshape(gate.shape)
        return self.out_proj.apply(flat * silu(gate) if self.norm is None else gated(flat, gate, self.norm))


@dataclass(frozen=True)
class DeltaLayer(RecurrentLayer):
    """Gated DeltaNet and Kimi Delta Attention: projections to q | k | v, to the gate z, to a and to b; a norm per head.

    g = A softplus(a + dt_bias), A < 0    beta = beta_scale sigmoid(b)

    If `dt_bias` is per head and key channel, so is a, and g is the decay of Kimi Delta Attention. `beta_scale` is 2 if
    negative eigenvalues are allowed (OLMo-Hybrid). With `lower_bound` < 0, g = lower_bound sigmoid(-A (a + dt_bias)) instead
    (the safe gate of Kimi K3, Bailing and GLM; `naive_kda_lowerbound_gate` of flash-linear-attention). Layouts that
    interleave the projections by key head (Qwen3-Next's in_proj_qkvz and in_proj_ba) are permutations of the rows of these
    weights.
    Source: arXiv:2412.06464, section 3.4; Kimi Linear, section 4.
    """

    mixer: DeltaMixer
    qkv_proj: Linear
    z_proj: Linear
    a_proj: Linear
    b_proj: Linear
    A: HeadParam
    dt_bias: HeadParam | HeadKeyParam
    norm: GatedNorm
    out_proj: Linear
    beta_scale: float = 1.0
    lower_bound: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lower_bound is not None and not self.lower_bound < 0:
            raise ParameterError(f"lower_bound is {self.lower_bound}; it bounds a log decay, so it must be below 0")

    def inputs(self, u: Residual) -> tuple[MixerInputs, Array]:
        heads, channels = self.mixer.value_heads, self.mixer.value_channels
        a = self.a_proj.apply(u).reshape(u.shape[:2] + self.dt_bias.shape)
        A = self.A if self.dt_bias.ndim == 1 else self.A[:, None]
        g, beta = delta.gates(a, self.b_proj.apply(u), A, self.dt_bias)
        if self.lower_bound is not None:
            g = self.lower_bound * sigmoid(-A * (a + self.dt_bias))
        z = self.z_proj.apply(u).reshape(*u.shape[:2], heads, channels)
        return MixerInputs(self.qkv_proj.apply(u), DeltaGates(g, self.beta_scale * beta)), z

    def output(self, y: Array, gate: Array) -> Residual:
        return self.out_proj.apply(gated(y, gate, self.norm).reshape(*y.shape[:2], -1))


@dataclass(frozen=True)
class Mamba1Layer(RecurrentLayer):
    """Mamba-1: one input projection, to x | z; y silu(z); one output projection. dt, B and C belong to the mixer.

    Source: arXiv:2312.00752, section 3.4.
    """

    mixer: SelectiveMixer
    in_proj: Linear
    out_proj: Linear

    def inputs(self, u: Residual) -> tuple[MixerInputs, Array]:
        channels = self.mixer.conv.weight.shape[0]
        x, z = split(self.in_proj.apply(u), [channels, channels])
        return MixerInputs(x, SelectiveGates()), z

    def output(self, y: Array, gate: Array) -> Residual:
        return self.out_proj.apply(y * silu(gate))


def split(projected: Array, pieces: list[int]) -> list[Array]:
    """The last axis split into consecutive pieces. Raises: ShapeMismatch unless their sizes sum to it."""
    if sum(pieces) != projected.shape[-1]:
        raise ShapeMismatch(f"a projection has {projected.shape[-1]} channels, but the layer splits it into {pieces}")
    return list(np.split(projected, np.cumsum(pieces)[:-1], axis=-1))


@checked
def scan(state: MixerState, u: Residual, layer: RecurrentLayer, live: Mask | None = None) -> tuple[Residual, MixerState]:
    """Advance a layer by every live token, (1) to (3); the output of other tokens is 0.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    Source: as `mixer.scan`.
    """
    inputs, gate = layer.inputs(u)  # (1)
    y, after = mixer.scan(state, inputs, layer.mixer, live)  # (2)
    out = layer.output(y, gate)  # (3)
    return (out if live is None else masked(out, live)), after
