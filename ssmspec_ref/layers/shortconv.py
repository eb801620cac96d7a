"""Layers of LFM2 that consist of a short convolution.

B | C | x = in_proj u                               (1)
y         = shortconv(B, C, x)                      (2)
out       = out_proj y                              (3)

Nothing is convolved in front of the recurrence (2): the convolution that a mixer has there runs over no channels.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .. import shortconv
from ..conv import ConvParams
from ..model.tiny_layers import CHANNELS, Draw, linear
from ..records import Record
from ..shapes import Array, Channels, Inners, Residual
from ..shortconv import ShortConvParams, ShortConvWindow, buffered, tree
from .layer import RecurrentLayer, split
from .linear import Linear
from .mixer import Buffered, Mixer, MixerInputs, Recurrence, TreeScan


@dataclass(frozen=True)
class ShortConvGates(Record):
    """The inputs of a short convolution; all of them pass the convolution of no channels by."""

    B: Inners
    C: Inners
    x: Inners


@dataclass(frozen=True)
class ShortConvMixer(Mixer):
    """The short convolution alone; `conv` has no channels (`NO_CHANNELS`)."""

    params: ShortConvParams
    kind: ClassVar[str] = "shortconv"
    recurrence: ClassVar[Recurrence] = shortconv
    tree: ClassVar[TreeScan] = tree
    buffered: ClassVar[Buffered] = buffered

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.params.weight.shape[0], self.params.columns

    def project(self, c: Channels, gates: ShortConvGates) -> ShortConvWindow:
        return ShortConvWindow(gates.B, gates.C, gates.x)


def mixer_of(params: ShortConvParams) -> ShortConvMixer:
    """The mixer with these weights."""
    return ShortConvMixer(NO_CHANNELS, params)


NO_CHANNELS = ConvParams(np.zeros((0, 2)), None, False)
"""A convolution that reads nothing and whose window holds nothing."""


@dataclass(frozen=True)
class ShortConvLayer(RecurrentLayer):
    """LFM2's layer: one input projection, to B | C | x; one output projection.

    Source: arXiv:2511.23404; modeling_lfm2.py of transformers 5.23.0 (the order B | C | x).
    """

    mixer: ShortConvMixer
    in_proj: Linear
    out_proj: Linear

    def inputs(self, u: Residual) -> tuple[MixerInputs, Array]:
        d = self.mixer.params.weight.shape[0]
        B, C, x = split(self.in_proj.apply(u), [d, d, d])  # (1)
        nothing = np.zeros((*u.shape[:2], 0))
        return MixerInputs(nothing, ShortConvGates(B, C, x)), nothing

    def output(self, y: Array, gate: Array) -> Residual:
        return self.out_proj.apply(y)  # (3)


def tiny(rng: Draw, biased: bool) -> ShortConvLayer:
    d, width = 6, 3 if biased else 4
    bias = rng.normal(0, 0.3, d) if biased else None
    mix = mixer_of(ShortConvParams(rng.normal(0, width**-0.5, (d, width)), bias))
    return ShortConvLayer(mix, linear(rng, 3 * d, CHANNELS, biased), linear(rng, CHANNELS, d, biased))
