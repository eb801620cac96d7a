"""Random tensors of one model. All are fp32 numbers, so that an implementation in fp32 has exactly the same model."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.judge.draw import stored
from ssmspec_ref.attention import AttentionParams
from ssmspec_ref.attention.layer import AttentionLayer
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.norm import Norm
from ssmspec_ref.layers.rotary import frequencies
from ssmspec_ref.model import MLP, Layer
from ssmspec_ref.shapes import Array

WIDTH = 7  # channels of the residual stream
EPS = 1.0
RATE = {"gentle": (-6.0, -3.0), "normal": (-3.0, 0.5), "hard": (0.5, 3.5)}
"""log(-A): heads that keep almost everything, heads in between, heads that forget within a token."""


@dataclass
class Maker:
    """Tensors of one model."""

    rng: np.random.Generator
    options: dict[str, Any] = field(default_factory=dict)

    def given(self, name: str, default: Any) -> Any:
        return self.options.get(name, default)

    def normal(self, *shape: int, scale: float = 1.0, offset: float = 0.0) -> Array:
        return stored(offset + scale * self.rng.standard_normal(shape), "fp32")

    def linear(self, outputs: int, inputs: int, bias: bool = False) -> Linear:
        return Linear(self.normal(outputs, inputs, scale=inputs**-0.5), self.normal(outputs, scale=0.3) if bias else None)

    def into(self, outputs: int, bias: bool = False) -> Linear:
        """A projection from the residual stream, scaled by `size`."""
        made = self.linear(outputs, WIDTH, bias)
        return Linear(stored(made.weight * self.given("size", 1.0), "fp32"), made.bias)

    def out(self, channels: int, bias: bool = False) -> Linear:
        """A projection to the residual stream."""
        return self.linear(WIDTH, channels, bias)

    def weight(self, channels: int) -> Array:
        return stored(self.rng.uniform(0.5, 1.5, channels), "fp32")

    def norm(self, channels: int = WIDTH) -> Norm:
        return Norm(self.weight(channels), EPS)

    def rate(self, *shape: int) -> Array:
        return stored(-np.exp(self.rng.uniform(*RATE[self.given("decay", "gentle")], shape)), "fp32")

    def conv(self, channels: int, bias: bool) -> ConvParams:
        w = self.given("w", 4)
        return ConvParams(self.normal(channels, w, scale=w**-0.5), self.normal(channels, scale=0.3) if bias else None)

    def attention(self) -> Layer:
        g, e = self.given("g", 1), 6
        h = g * self.given("h", 2)
        turns = stored(frequencies(4), "fp32") if self.given("rotary", True) else None
        q, k, v = (self.linear(count * e, WIDTH, self.given("bias", False)) for count in (h, g, g))
        return AttentionLayer(AttentionParams(frequencies=turns), q, k, v, self.linear(WIDTH, h * e), h, g)

    def mlp(self) -> MLP:
        return MLP(self.linear(9, WIDTH), self.linear(9, WIDTH), self.linear(WIDTH, 9))
