"""Mamba-1 and Mamba-2 as transformers stores them: every block is a single mixer."""

import math

from ..models.config import (
    BlockConfig,
    Branch,
    GatedNormConfig,
    Mamba1Config,
    Mamba2Config,
    ModelConfig,
    NormConfig,
    RecurrentConfig,
)
from ..models.model import Block, Model
from . import parts
from .fields import Fields
from .source import Source


def _common(f: Fields, mixer: RecurrentConfig, tied: bool) -> ModelConfig:
    f.must("hidden_act", "silu")
    layers = f.layers()
    return f.model(
        f.count("hidden_size"),
        (BlockConfig((Branch(mixer),)),) * layers,
        NormConfig(f.eps("layer_norm_epsilon", 1e-5)),
        tied=tied,
        residual_fp32=f.flag("residual_in_fp32", True),
    )


def read_mamba(f: Fields) -> ModelConfig:
    width = f.count("hidden_size")
    inner = f.count("expand", 2) * width
    f.must("intermediate_size", inner)
    rank = f.get("time_step_rank", "auto")
    mixer = Mamba1Config(
        inner,
        f.count("state_size", 16),
        math.ceil(width / 16) if rank == "auto" else f.count("time_step_rank"),
        f.count("conv_kernel", 4),
        f.flag("use_conv_bias", True),
        f.flag("use_bias", False),
    )
    return _common(f, mixer, tied=True)


def read_mamba2(f: Fields) -> ModelConfig:
    heads, channels, groups = f.count("num_heads"), f.count("head_dim"), f.count("n_groups", 8)
    f.divides("n_groups", groups, "num_heads", heads)
    f.must("expand", heads * channels / f.count("hidden_size"))
    f.ignore("time_step_rank")
    f.must("rms_norm", True)
    f.must("norm_before_gate", False, True)  # some configs write it but no code reads it: the norm is of the gated y
    mixer = Mamba2Config(
        heads,
        channels,
        f.count("state_size", 128),
        groups,
        f.count("conv_kernel", 4),
        conv_bias=f.flag("use_conv_bias", True),
        bias=f.flag("use_bias", False),
        out_bias=f.flag("use_bias", False),
        dt_limit=f.limits("time_step_limit"),
        norm=GatedNormConfig(groups, f.eps("layer_norm_epsilon", 1e-5)),
    )
    return _common(f, mixer, tied=False)


def assemble(config: ModelConfig, source: Source) -> Model:
    """The tensors of both: `backbone.layers.i.mixer`."""
    blocks = []
    for i, mixer in enumerate(config.mixers):
        name = f"backbone.layers.{i}"
        layer = parts.mixer(source, f"{name}.mixer", config.width, mixer)
        blocks.append(Block((layer,), parts.norm(source, f"{name}.norm", config.width, config.norm)))
    return parts.model(source, config, "backbone.embeddings", "backbone.norm_f", "lm_head", tuple(blocks))
