"""Small language models from a few words: structure is drawn by Hypothesis, tensors by a generator from the seed.

Every norm has eps = 1, so that its derivative is at most 1 however small what it norms: the running error bounds stay below
1e-2 of the logits through two layers in fp32, where eps = 1e-5 lets them grow to 1e1. Tensors are fp32 numbers, so that an
implementation in fp32 has the same model.
"""

from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from conformance.draw import stored
from ssmspec_ref.attention import AttentionParams
from ssmspec_ref.attention_layer import AttentionLayer
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.delta import DeltaParams
from ssmspec_ref.layer import DeltaLayer, Mamba1Layer, Mamba2Layer
from ssmspec_ref.linear import Linear
from ssmspec_ref.mixer import DeltaMixer, SelectiveMixer, SSDMixer
from ssmspec_ref.model import MLP, Block, Layer, Model
from ssmspec_ref.norm import GatedNorm, Norm
from ssmspec_ref.rotary import frequencies
from ssmspec_ref.selective import SelectiveParams
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import SSDParams

WIDTH = 7  # channels of the residual stream
EPS = 1.0
KINDS = ("mamba2", "mamba1", "delta", "attention")
RATE = {"gentle": (-6.0, -3.0), "normal": (-3.0, 0.5), "hard": (0.5, 3.5)}
"""log(-A): heads that keep almost all, heads between, heads that forget within a token."""


@dataclass(frozen=True)
class Spec:
    """A model in words. `kinds` names the layer of each block; `options` what is not as a plain layer has it.

    decay    gentle, normal or hard     size     scale of what is projected: large states
    w        taps of the convolution    n, p, d  state, head channels, inner channels       g, h   groups (key heads), heads
    bias, D, norm ("", first, last), limit, act, widened, mlp, rotary
    """

    kinds: tuple[str, ...] = ("mamba2",)
    seed: int = 0
    vocabulary: int = 4
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, words: dict[str, Any]) -> "Spec":
        """From its JSON form."""
        held = {name: tuple(value) if isinstance(value, list) else value for name, value in words.get("options", {}).items()}
        options = tuple(sorted(held.items()))
        return cls(tuple(words["kinds"]), words["seed"], words.get("vocabulary", 4), options)

    def words(self) -> dict[str, Any]:
        return {**asdict(self), "kinds": list(self.kinds), "options": dict(self.options)}


@dataclass
class Maker:
    """Tensors of one model."""

    spec: Spec
    rng: np.random.Generator
    options: dict[str, Any] = field(default_factory=dict)

    def given(self, name: str, default: Any) -> Any:
        return self.options.get(name, default)

    def normal(self, *shape: int, scale: float = 1.0, offset: float = 0.0) -> Array:
        return stored(offset + scale * self.rng.standard_normal(shape), "fp32")

    def linear(self, outputs: int, inputs: int, bias: bool = False) -> Linear:
        return Linear(self.normal(outputs, inputs, scale=inputs**-0.5), self.normal(outputs, scale=0.3) if bias else None)

    def into(self, outputs: int, bias: bool = False) -> Linear:
        """A projection from the stream, scaled by `size`."""
        made = self.linear(outputs, WIDTH, bias)
        return Linear(stored(made.weight * self.given("size", 1.0), "fp32"), made.bias)

    def weight(self, channels: int) -> Array:
        return stored(self.rng.uniform(0.5, 1.5, channels), "fp32")

    def norm(self, channels: int = WIDTH) -> Norm:
        return Norm(self.weight(channels), EPS)

    def rate(self, *shape: int) -> Array:
        return stored(-np.exp(self.rng.uniform(*RATE[self.given("decay", "gentle")], shape)), "fp32")

    def conv(self, channels: int, bias: bool) -> ConvParams:
        w = self.given("w", 4)
        return ConvParams(self.normal(channels, w, scale=w**-0.5), self.normal(channels, scale=0.3) if bias else None)

    def mamba2(self) -> Layer:
        g, p, n = self.given("g", 1), self.given("p", 3), self.given("n", 5)
        h, bias, form = g * self.given("h", 2), self.given("bias", False), self.given("norm", "first")
        D = {"none": None, "head": self.normal(h), "channel": self.normal(h, p)}[self.given("D", "head")]
        params = SSDParams(self.rate(h), D, self.normal(h, offset=-1.0), dt_limit=tuple(self.given("limit", (0.0, np.inf))))
        xs, Bs = (max(1, h // 2), 1) if self.given("widened", False) else (h, g)
        channels = xs * p + (Bs + g) * n
        mix = SSDMixer(self.conv(channels, self.given("conv_bias", True)), params, p, n, g, *((xs, Bs) if xs < h else ()))
        total = h * p + channels + h
        gated = None if not form else GatedNorm(self.weight(h * p), EPS, groups=g, norm_first=form == "first")
        scales = stored(self.rng.uniform(0.5, 1.5, total), "fp32") if self.given("multipliers", False) else None
        return Mamba2Layer(mix, self.into(total, bias), self.linear(WIDTH, h * p, bias), gated, 1.0, scales)

    def mamba1(self) -> Layer:
        d, n, rank = self.given("d", 5), self.given("n", 3), 2
        D = None if self.given("D", "head") == "none" else self.normal(d)
        params = SelectiveParams(self.rate(d, n), D, self.normal(d, offset=-1.0))
        x_proj, dt_proj = self.normal(rank + 2 * n, d, scale=d**-0.5), self.normal(d, rank)
        mix = SelectiveMixer(self.conv(d, self.given("conv_bias", True)), params, x_proj, dt_proj)
        return Mamba1Layer(mix, self.into(2 * d, self.given("bias", False)), self.linear(WIDTH, d, self.given("bias", False)))

    def delta(self) -> Layer:
        g, k, v = self.given("g", 1), self.given("n", 4), self.given("p", 3)
        h = g * self.given("h", 2)
        mix = DeltaMixer(self.conv(2 * g * k + h * v, False), DeltaParams(eps=1e-2), g, h, k, v)
        gated = GatedNorm(self.weight(v), EPS, norm_first=True)
        maps = self.into(2 * g * k + h * v), self.into(h * v), self.into(h), self.into(h)
        return DeltaLayer(mix, *maps, self.rate(h), self.normal(h, offset=-1.0), gated, self.linear(WIDTH, h * v))

    def attention(self) -> Layer:
        g, e = self.given("g", 1), 6
        h = g * self.given("h", 2)
        turns = stored(frequencies(4), "fp32") if self.given("rotary", True) else None
        q, k, v = (self.linear(count * e, WIDTH, self.given("bias", False)) for count in (h, g, g))
        return AttentionLayer(AttentionParams(frequencies=turns), q, k, v, self.linear(WIDTH, h * e), h, g)

    def mlp(self) -> MLP:
        return MLP(self.linear(9, WIDTH), self.linear(9, WIDTH), self.linear(WIDTH, 9))


@lru_cache(maxsize=256)
def build(spec: Spec) -> Model:
    """The model of a spec."""
    maker = Maker(spec, np.random.default_rng(spec.seed), dict(spec.options))
    blocks = []
    for i, kind in enumerate(spec.kinds):
        behind = (maker.norm(), maker.mlp()) if maker.given("mlp", False) and i == 0 else (None, None)
        blocks.append(Block(maker.norm(), getattr(maker, kind)(), *behind))
    embedding = maker.normal(spec.vocabulary, WIDTH)
    return Model(embedding, tuple(blocks), maker.norm(), Linear(maker.normal(spec.vocabulary, WIDTH, scale=WIDTH**-0.5)))
