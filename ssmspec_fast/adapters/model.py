"""Converts a model of the suite to the engine's: the same tensors under the engine's names, in fp32.

Records are read by their fields (`ssmspec_ref.model`, `.layer`, `.attention_layer`); no function of the reference is called.
"""

from typing import Any

from ssmspec_ref.errors import Unsupported

from ..layers.attention import Attention
from ..layers.linear import Linear, joined
from ..layers.mlp import MLP
from ..layers.norm import Norm
from ..models.config import AttentionConfig, BlockConfig, Branch, MLPConfig, ModelConfig, NormConfig
from ..models.model import Block, Mixer, Model
from ..operations import Taps
from .given import GIVEN
from .given.kind import translated
from .tensors import exact


def model_of(record: Any, device: str, longest: int) -> Model:
    """The engine's model. Raises: Unsupported for what the engine's layers do not have."""
    read = Reader(device)
    blocks = [read.block(block) for block in record.blocks]
    norm = NormConfig(record.norm.eps)
    sizes, held = tuple(sizes for sizes, _ in blocks), tuple(block for _, block in blocks)
    vocabulary, width = record.embedding.shape
    config = ModelConfig("given", vocabulary, width, sizes, norm, length=longest)
    return Model(config, read.tensor(record.embedding), held, read.norm(record.norm), read.tensor(record.head.weight))


class Reader:
    """Converts records into layers, tensor by tensor, on a device."""

    def __init__(self, device: str) -> None:
        self.device = device

    def tensor(self, array: Any) -> Any:
        return exact(array, self.device)

    def linear(self, x: Any) -> Linear:
        if x.down is not None:
            raise Unsupported("a projection has two factors; the engine's projections are single matrices")
        return Linear(self.tensor(x.weight), self.tensor(x.bias))

    def norm(self, x: Any) -> Norm:
        return Norm(self.tensor(x.weight), x.eps)

    def taps(self, x: Any) -> Taps:
        return translated(Taps, x, self.tensor)

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
        return self.attention(layer) if hasattr(layer, "q_proj") else GIVEN[layer.mixer.kind].layer(self, layer)

    def attention(self, layer: Any) -> Attention:
        if layer.params.scale is not None:
            raise Unsupported("attention has another scale; the engine's is e^-1/2")
        config = AttentionConfig(layer.heads, layer.groups, layer.q_proj.outputs // layer.heads)
        q, k, v, out = (self.linear(x) for x in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj))
        return Attention(config, joined(q, k, v), out, self.tensor(layer.params.frequencies))
