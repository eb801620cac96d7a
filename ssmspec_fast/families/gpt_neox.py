"""GPT-NeoX (Pythia): centred norms, one projection for q | k | v of each head, attention and MLP in parallel."""

from ..layers.attention import Attention
from ..layers.linear import Linear
from ..layers.mlp import MLP
from ..models.config import AttentionConfig, BlockConfig, Branch, MLPConfig, ModelConfig, NormConfig
from ..models.model import Block, Model
from . import parts
from .fields import Fields
from .source import Source


def read(f: Fields) -> ModelConfig:
    width, heads = f.count("hidden_size"), f.count("num_attention_heads")
    f.divides("num_attention_heads", heads, "hidden_size", width)
    channels = width // heads
    f.must("hidden_act", "gelu")
    bias = f.flag("attention_bias", True)
    attention = AttentionConfig(heads, heads, channels, f.rotary(channels, 0.25), bias, bias)
    mlp = MLPConfig(f.count("intermediate_size"), "gelu", gated=False, bias=True)
    block = BlockConfig((Branch(attention),), mlp, f.flag("use_parallel_residual", True))
    norm = NormConfig(f.eps("layer_norm_eps", 1e-5), centred=True)
    return f.model(width, (block,) * f.layers(), norm, length=2048)


def _attention(source: Source, name: str, width: int, c: AttentionConfig) -> Attention:
    """The rows of query_key_value are, for each head, its q, its k, its v."""
    packed = source.linear(f"{name}.query_key_value", 3 * width, width, c.bias)
    weight = packed.weight.view(c.heads, 3, c.channels, width).transpose(0, 1).reshape(-1, width)
    bias = None if packed.bias is None else packed.bias.view(c.heads, 3, c.channels).transpose(0, 1).reshape(-1)
    out = source.linear(f"{name}.dense", width, width, c.out_bias)
    return Attention(c, Linear(weight, bias), out, parts.turning(source, c))


def assemble(config: ModelConfig, source: Source) -> Model:
    """The tensors: `gpt_neox.layers.i` with `attention` and `mlp`, and `embed_out`."""
    width, blocks = config.width, []
    source.ignore(".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq")
    for i, block in enumerate(config.blocks):
        name, attention, mlp = f"gpt_neox.layers.{i}", block.branches[0].mixer, block.mlp
        assert isinstance(attention, AttentionConfig)
        assert mlp is not None
        up = source.linear(f"{name}.mlp.dense_h_to_4h", mlp.inner, width, True)
        down = source.linear(f"{name}.mlp.dense_4h_to_h", width, mlp.inner, True)
        blocks.append(
            Block(
                (_attention(source, f"{name}.attention", width, attention),),
                parts.norm(source, f"{name}.input_layernorm", width, config.norm),
                MLP(mlp, up, down),
                parts.norm(source, f"{name}.post_attention_layernorm", width, config.norm),
            )
        )
    return parts.model(source, config, "gpt_neox.embed_in", "gpt_neox.final_layer_norm", "embed_out", tuple(blocks))
