"""Mamba-3 as mamba-ssm stores it: every block is a single mixer, or a mixer and a gated MLP.

The config is mamba-ssm's own, without model_type: `d_model`, `n_layer`, and `ssm_cfg` with the arguments of the layer. Sizes
that mamba-ssm rounds up are rounded here, too: the vocabulary to `pad_vocab_size_multiple`, an MLP to 128 channels. SISO
pairs neighbouring channels, MIMO the halves. A norm of the output is of each head; with MIMO it is refused, as are blocks of
attention.
Source: models/config_mamba.py, models/mixer_seq_simple.py, modules/mamba3.py, modules/block.py and modules/mlp.py of
state-spaces/mamba.
"""

from ..layers.linear import Linear
from ..layers.mamba3 import Mamba3Config
from ..layers.mlp import MLP
from ..models.config import BlockConfig, Branch, GatedNormConfig, MLPConfig, ModelConfig, NormConfig
from ..models.model import Block, Model
from . import parts
from .fields import MOST, Fields
from .source import Source

EPS = 1e-5
"""Of every norm; no field says another."""
MULTIPLE = 128
OF_TRAINING = ("dt_min", "dt_max", "dt_init_floor", "dropout")
"""Arguments of the layer that only draw its weights, or that it ignores."""


def read(f: Fields) -> ModelConfig:
    width = f.count("d_model")
    mixer = _mixer(f.inside("ssm_cfg"), width)
    f.must("attn_layer_idx", None, [])
    f.ignore("attn_cfg")
    f.flag("fused_add_norm", True)
    inner = -(-f.count("d_intermediate", 0, least=0) // MULTIPLE) * MULTIPLE
    block = BlockConfig((Branch(mixer),), MLPConfig(inner) if inner else None)
    tied = f.flag("tie_embeddings", True)
    f.must("tie_word_embeddings", tied)
    return f.model(
        width,
        (block,) * f.layers("n_layer"),
        NormConfig(EPS, centred=not f.flag("rms_norm", True)),
        tied=tied,
        multiple=f.count("pad_vocab_size_multiple", 8),
        residual_fp32=f.flag("residual_in_fp32", True),
    )


def _mixer(s: Fields, width: int) -> Mamba3Config:
    s.must("layer", "Mamba3")
    channels, state, groups = s.count("headdim", 64), s.count("d_state", 128), s.count("ngroups", 1)
    wanted = s.number("expand", 2, 0.0) * width
    if not 1 <= wanted <= MOST:
        raise s.refuse("expand", s.get("expand", 2), f"such that expand d_model lies in 1 .. {MOST}")
    inner = int(wanted)
    s.divides("headdim", channels, "expand d_model", inner)
    heads = inner // channels
    s.divides("ngroups", groups, "heads", heads)
    if state % 2:
        raise s.refuse("d_state", state, "even, because channels of keys turn in pairs")
    several = s.flag("is_mimo", False)
    rank = s.count("mimo_rank", 4)
    if several and s.flag("is_outproj_norm", False):
        raise s.refuse("is_outproj_norm", True, "false with is_mimo: a norm of each rank is not supported")
    s.ignore(*OF_TRAINING)
    angles = int(state * s.must("rope_fraction", 0.5, 1.0)) // 2
    if not angles:
        raise s.refuse("d_state", state, "4 or more with rope_fraction 0.5: no pair of channels would turn")
    made = Mamba3Config(
        heads,
        channels,
        state,
        groups,
        angles,
        rank if several else 1,
        halves=several,
        maps=several,
        floor=s.number("A_floor", 1e-4, 0.0),
        eps=EPS,
        norm=GatedNormConfig(heads, EPS, norm_first=True) if s.flag("is_outproj_norm", False) else None,
    )
    s.finish()
    return made


def assemble(config: ModelConfig, source: Source) -> Model:
    """The tensors: `backbone.layers.i` with `mixer` and, if there is an MLP, `norm2` and `mlp`."""
    blocks = tuple(_block(source, f"backbone.layers.{i}", config, block) for i, block in enumerate(config.blocks))
    return parts.model(source, config, "backbone.embedding", "backbone.norm_f", "lm_head", blocks)


def _block(source: Source, name: str, config: ModelConfig, block: BlockConfig) -> Block:
    width, (branch,), c = config.width, block.branches, block.mlp
    mixer = parts.mixer(source, f"{name}.mixer", width, branch.mixer)
    first = parts.norm(source, f"{name}.norm", width, config.norm)
    if c is None:
        return Block((mixer,), first)
    both = source.linear(f"{name}.mlp.fc1", 2 * c.inner, width).weight
    mlp = MLP(c, Linear(both[: c.inner]), source.linear(f"{name}.mlp.fc2", width, c.inner), Linear(both[c.inner :]))
    return Block((mixer,), first, mlp, parts.norm(source, f"{name}.norm2", width, config.norm))
