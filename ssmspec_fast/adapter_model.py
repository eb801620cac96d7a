"""A model of the suite as the engine's: the same tensors under the engine's names, in fp32.

Records are read by their fields (`ssmspec_ref.model`, `.layer`, `.attention_layer`); nothing of the reference is called.
"""

from typing import Any

from ssmspec_ref.errors import Unsupported

from .adapter_tensors import exact
from .config import (
    AttentionConfig,
    BlockConfig,
    Branch,
    DeltaConfig,
    GatedNormConfig,
    Mamba1Config,
    Mamba2Config,
    MLPConfig,
    ModelConfig,
    NormConfig,
)
from .layers.attention import Attention
from .layers.delta import Delta
from .layers.linear import Linear, joined
from .layers.mamba1 import Mamba1
from .layers.mamba2 import Mamba2
from .layers.mlp import MLP
from .layers.norm import Norm
from .model import Block, Mixer, Model
from .operations import DeltaParams, SelectiveParams, SSDParams, Taps


def model_of(record: Any, device: str, longest: int) -> Model:
    """Raises: Unsupported for what the engine's layers do not have."""
    read = Reader(device)
    blocks = [read.block(block) for block in record.blocks]
    norm = NormConfig(record.norm.eps)
    sizes, held = tuple(sizes for sizes, _ in blocks), tuple(block for _, block in blocks)
    vocabulary, width = record.embedding.shape
    config = ModelConfig("given", vocabulary, width, sizes, norm, length=longest)
    return Model(config, read.tensor(record.embedding), held, read.norm(record.norm), read.tensor(record.head.weight))


class Reader:
    """Records into layers, tensor by tensor, on a device."""

    def __init__(self, device: str) -> None:
        self.device = device

    def tensor(self, array: Any) -> Any:
        return exact(array, self.device)

    def linear(self, x: Any) -> Linear:
        if x.down is not None:
            raise Unsupported("a projection came with two factors; the engine has projections of one matrix")
        return Linear(self.tensor(x.weight), self.tensor(x.bias))

    def norm(self, x: Any) -> Norm:
        return Norm(self.tensor(x.weight), x.eps)

    def taps(self, x: Any) -> Taps:
        return Taps(self.tensor(x.weight), self.tensor(x.bias), x.activation)

    def block(self, x: Any) -> tuple[BlockConfig, Block]:
        mixer = self.mixer(x.layer)
        mlp = sizes = None
        if x.mlp is not None:
            up, down, gate = (self.linear(part) for part in (x.mlp.up, x.mlp.down, x.mlp.gate))
            sizes = MLPConfig(x.mlp.up.outputs)
            mlp = MLP(sizes, up, down, gate)
        behind = None if x.mlp_norm is None else self.norm(x.mlp_norm)
        return BlockConfig((Branch(mixer.config),), sizes), Block((mixer,), self.norm(x.norm), mlp, behind)

    def mixer(self, layer: Any) -> Mixer:
        if hasattr(layer, "q_proj"):
            return self.attention(layer)
        if hasattr(layer, "qkv_proj"):
            return self.delta(layer)
        return self.mamba1(layer) if hasattr(layer.mixer, "x_proj") else self.mamba2(layer)

    def mamba1(self, layer: Any) -> Mamba1:
        m, p = layer.mixer, layer.mixer.params
        if m.dt_norm is not None:
            raise Unsupported("Mamba-1 came with norms of dt, B and C; the engine's has none")
        config = Mamba1Config(p.A.shape[0], p.A.shape[1], m.dt_proj.shape[1], m.conv.weight.shape[1])
        params = SelectiveParams(self.tensor(p.A), self.tensor(p.D), self.tensor(p.dt_bias), p.dt_softplus)
        inner = Linear(self.tensor(m.x_proj)), Linear(self.tensor(m.dt_proj))
        return Mamba1(config, self.linear(layer.in_proj), self.taps(m.conv), *inner, params, self.linear(layer.out_proj))

    def mamba2(self, layer: Any) -> Mamba2:
        m, p, norm = layer.mixer, layer.mixer.params, layer.norm
        gated = None if norm is None else GatedNormConfig(norm.groups, norm.eps, norm.norm_first)
        sizes = len(p.A), m.channels, m.state, m.groups, m.conv.weight.shape[1], m.x_groups, m.B_groups
        config = Mamba2Config(*sizes, norm=gated, input_multiplier=layer.input_multiplier)
        params = SSDParams(self.tensor(p.A), self.tensor(p.D), self.tensor(p.dt_bias), p.dt_softplus, p.dt_limit)
        weight = None if norm is None else self.tensor(norm.weight)
        out, scales = self.linear(layer.out_proj), self.tensor(layer.multipliers)
        return Mamba2(config, self.linear(layer.in_proj), self.taps(m.conv), params, out, weight, scales)

    def delta(self, layer: Any) -> Delta:
        m, p = layer.mixer, layer.mixer.params
        plain = layer.dt_bias.ndim == 1 and layer.beta_scale == 1.0 and layer.lower_bound is None
        if not (plain and layer.norm.gate == "silu"):
            raise Unsupported("the engine's delta rule decays by head, with beta below 1 and a SiLU gate")
        sizes = m.key_heads, m.value_heads, m.key_channels, m.value_channels
        config = DeltaConfig(*sizes, m.conv.weight.shape[1], layer.norm.eps)
        params = DeltaParams(self.tensor(layer.A), self.tensor(layer.dt_bias), p.l2_norm, p.scale, p.eps)
        qkv, z, a, b = (self.linear(x) for x in (layer.qkv_proj, layer.z_proj, layer.a_proj, layer.b_proj))
        norm, out = self.tensor(layer.norm.weight), self.linear(layer.out_proj)
        return Delta(config, qkv, z, a, b, self.taps(m.conv), params, norm, out)

    def attention(self, layer: Any) -> Attention:
        if layer.params.scale is not None:
            raise Unsupported("attention came with a scale of its own; the engine's is e^-1/2")
        config = AttentionConfig(layer.heads, layer.groups, layer.q_proj.outputs // layer.heads)
        q, k, v, out = (self.linear(x) for x in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj))
        return Attention(config, joined(q, k, v), out, self.tensor(layer.params.frequencies))
