"""Layers of retention: q | k | v through the convolution, y silu(z), a projection out."""

import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ssmspec_ref.functions import silu
from ssmspec_ref.layers.layer import RecurrentLayer
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.mixer import Buffered, Mixer, MixerInputs, Recurrence, TreeScan
from ssmspec_ref.layers.recurrences import Recurrence as Kind
from ssmspec_ref.model.tiny_layers import CHANNELS, Draw, conv, decay, linear
from ssmspec_ref.records import Record
from ssmspec_ref.shapes import Array, Channels, Residual

from . import RetentionParams, RetentionWindow, buffered, chunked, tree


@dataclass(frozen=True)
class RetentionGates(Record):
    """Nothing passes the convolution by."""


@dataclass(frozen=True)
class RetentionMixer(Mixer):
    params: RetentionParams
    key_channels: int
    value_channels: int
    kind: ClassVar[str] = "retention"
    recurrence: ClassVar[Recurrence] = sys.modules[__package__]  # type: ignore[assignment]
    tree: ClassVar[TreeScan] = tree
    buffered: ClassVar[Buffered] = buffered

    @property
    def state_shape(self) -> tuple[int, ...]:
        return len(self.params.A), self.key_channels, self.value_channels

    def project(self, c: Channels, gates: RetentionGates) -> RetentionWindow:
        h, k, v = self.state_shape
        q, keys, values = np.split(c, [h * k, 2 * h * k], axis=2)
        lead = c.shape[:2]
        return RetentionWindow(q.reshape(*lead, h, k), keys.reshape(*lead, h, k), values.reshape(*lead, h, v))


@dataclass(frozen=True)
class RetentionLayer(RecurrentLayer):
    mixer: RetentionMixer
    qkv_proj: Linear
    z_proj: Linear
    out_proj: Linear

    def inputs(self, u: Residual) -> tuple[MixerInputs, Array]:
        return MixerInputs(self.qkv_proj.apply(u), RetentionGates()), self.z_proj.apply(u)

    def output(self, y: Array, gate: Array) -> Residual:
        return self.out_proj.apply(y.reshape(gate.shape) * silu(gate))


def tiny(rng: Draw) -> RetentionLayer:
    h, k, v = 3, 2, 4
    mixer = RetentionMixer(conv(rng, h * (2 * k + v), 3), RetentionParams(decay(rng, h)), k, v)
    z, out = linear(rng, h * v, CHANNELS), linear(rng, CHANNELS, h * v)
    return RetentionLayer(mixer, linear(rng, h * (2 * k + v), CHANNELS), z, out)


KIND = Kind(RetentionWindow, RetentionMixer, RetentionLayer, chunked, "retention", (tiny, tiny))
