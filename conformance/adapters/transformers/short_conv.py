"""The layers of LFM2 that consist of a short convolution, whole, and tested as a convolution.

out = out_proj(C conv(B x)),  B | C | x = in_proj(u). With B = C = 1 from the bias of in_proj, x = u from its weight and an
identity for out_proj, every other product is exact, and the output is that of the convolution with its cache.
"""

from importlib import import_module
from typing import Any

import numpy as np

from ssmspec_ref.contract import Limits
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.layers.shortconv import ShortConvLayer
from ssmspec_ref.shapes import Array, Mask

from .cache import CachedLayer
from .families import ONE_LAYER, Family
from .functions import arrays, tensor
from .guard import modeling, quiet
from .weights import fill, project

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


class CachedShortConv(CachedLayer):
    """A layer with its own cache, which holds w columns; the oldest of them is not read again."""

    def forward(self, u: Array, live: Mask | None = None) -> Array:
        import torch
        from transformers.masking_utils import create_recurrent_attention_mask

        inputs = torch.as_tensor(u).to(self.dtype)
        mask = None if live is None else torch.as_tensor(live)
        with torch.no_grad(), quiet():
            mask = create_recurrent_attention_mask(self.config, inputs, mask, self.cache)
            out = self.module(inputs, past_key_values=self.cache, attention_mask=mask)
        return out.double().numpy()

    def state(self) -> tuple[Array, Array]:
        held, columns = self.held.conv_states[0].double().numpy(), self.used.mixer.params.columns
        before = np.zeros((*held.shape[:2], columns))
        return np.zeros((len(held), 0, 2)), np.concatenate([before, held], axis=2)[:, :, -columns:]


def _options(layer: ShortConvLayer) -> dict[str, Any]:
    params = layer.mixer.params
    d, width = params.weight.shape
    return ONE_LAYER | {
        "hidden_size": d, "conv_L_cache": width, "conv_bias": params.bias is not None, "layer_types": ["conv"],
    }  # fmt: skip


def _load(module: Any, layer: ShortConvLayer) -> ShortConvLayer:
    params, like = layer.mixer.params, module.conv.weight
    module.in_proj, module.out_proj = project(layer.in_proj, like), project(layer.out_proj, like)
    fill(module.conv.weight, params.weight)
    if params.bias is not None:
        fill(module.conv.bias, params.bias)
    return layer


def _limits(bias: str) -> Limits:
    """One field of the config gives the convolution and both projections a bias."""
    return Limits({"kind": ("shortconv",), "conv_bias": (bias,), "proj_bias": (bias,)}, reason="one field for all biases")


LAYERS = {
    f"{name}{ending}": Family(name, f"{kind}ShortConv", f"{kind}Config", _options, _load, _limits(bias))
    for name, kind in FAMILIES.items()
    for ending, bias in (("", "off"), ("_biased", "on"))
}
"""By the name of their subject; published models have no bias."""
