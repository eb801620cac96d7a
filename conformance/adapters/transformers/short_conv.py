"""The layers of LFM2 that consist of a convolution only, tested as a convolution.

out = out_proj(C conv(B x)),  B | C | x = in_proj(u). With B = C = 1 from the bias of in_proj, x = u from its weight and an
identity for out_proj, every other product is exact, and the output is that of the convolution with its cache.
"""

from importlib import import_module
from typing import Any

import numpy as np

from ssmspec_ref.conv import ConvParams
from ssmspec_ref.shapes import Array

from .families import ONE_LAYER
from .functions import arrays, tensor
from .guard import modeling, quiet
from .weights import fill

FAMILIES = {"lfm2": "Lfm2", "lfm2_moe": "Lfm2Moe", "lfm3": "Lfm3"}


def module(family: str, params: ConvParams) -> Any:
    """The module of a family with this convolution between identities."""
    channels = params.weight.shape[0]
    configurations = import_module(f"transformers.models.{family}.configuration_{family}")
    options = {"hidden_size": channels, "conv_L_cache": params.width, "conv_bias": True, "layer_types": ["conv"]}
    with quiet():
        config = getattr(configurations, f"{FAMILIES[family]}Config")(**ONE_LAYER | options)
        layer = getattr(modeling(family), f"{FAMILIES[family]}ShortConv")(config, layer_idx=0)
    one, none = np.ones(channels), np.zeros(channels)
    fill(layer.in_proj.weight, np.concatenate([np.zeros((2 * channels, channels)), np.eye(channels)]))
    fill(layer.in_proj.bias, np.concatenate([one, one, none]))
    fill(layer.out_proj.weight, np.eye(channels))
    fill(layer.out_proj.bias, none)
    fill(layer.conv.weight, params.weight)
    fill(layer.conv.bias, none if params.bias is None else params.bias)
    return layer


def scan(family: str, M: Array, u: Array, params: ConvParams) -> tuple[Array, ...]:
    """Several tokens from the cache."""
    import torch
    from transformers.cache_utils import Cache, LinearAttentionLayer

    held = LinearAttentionLayer()
    held.update_conv_state(tensor(M), conv_kernel_size=params.width)
    with torch.no_grad(), quiet():
        y = module(family, params)(tensor(u), past_key_values=Cache(layers=[held]))
    return arrays(y, held.conv_states[0])


def step(family: str, M: Array, u: Array, params: ConvParams) -> tuple[Array, ...]:
    """One token from the cache."""
    y, M_next = scan(family, M, u[:, None], params)
    return y[:, 0], M_next
