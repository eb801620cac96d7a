"""Layers of transformers that do not fit a single record of the reference; each is composed from the reference's functions.

Every function builds one module with random weights, feeds it a prompt and then more tokens from its cache, and returns the
actual and the reference's outputs as pairs. They are compared in float64 (`exact`).
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
from numpy import einsum

from ssmspec_ref import conv, ssd
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.functions import sigmoid, silu
from ssmspec_ref.layers import layer as reference
from ssmspec_ref.layers.layer import Mamba1Layer
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.mixer import SelectiveMixer, new_state
from ssmspec_ref.layers.norm import Norm, rms
from ssmspec_ref.selective import SelectiveParams
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import SSDParams, SSDWindow

from .families import CHUNK, ONE_LAYER
from .guard import modeling, quiet

Pairs = Iterator[tuple[str, Array, Array]]
"""Name of an output, the actual value, the reference's value."""
FEEDS = (5, 1, 3)
"""Tokens fed at a time: a prompt, one token, several from the cache."""
ROWS, WIDTH = 2, 6


def made(family: str, config: str, mixer: str, options: dict[str, Any], **arguments: Any) -> tuple[Any, dict[str, Array]]:
    """A module with random parameters, and the parameters as arrays."""
    import torch

    configurations = import_module(f"transformers.models.{family}.configuration_{family}")
    rng = np.random.default_rng(7)
    with quiet(), torch.no_grad():
        layer = getattr(modeling(family), mixer)(getattr(configurations, config)(**ONE_LAYER | options), **arguments)
        for parameter in layer.parameters():
            parameter.copy_(torch.as_tensor(0.5 * rng.standard_normal(tuple(parameter.shape))))
    return layer.eval(), {name: p.detach().double().numpy() for name, p in layer.named_parameters()}


def fed(run: Callable[[Any], Any], width: int = WIDTH) -> tuple[Array, Array]:
    """The input tokens, fed in `FEEDS`, and the module's outputs."""
    import torch

    u = np.random.default_rng(8).standard_normal((ROWS, sum(FEEDS), width)).astype(np.float32).astype(np.float64)
    edges = np.cumsum((0, *FEEDS))
    with torch.no_grad(), quiet():
        outs = [run(torch.as_tensor(u[:, a:b]).to(torch.get_default_dtype())) for a, b in pairwise(edges)]
    return u, np.concatenate([out.double().numpy() for out in outs], axis=1)


def linear_cache(states: int = 1) -> tuple[Any, Any]:
    from transformers.cache_utils import Cache, LinearAttentionLayer

    held: Any = LinearAttentionLayer(number_of_states=states)
    return held, Cache(layers=[held])


def convolved(weight: Array, bias: Array | None, u: Array) -> tuple[Array, Array]:
    """A convolution from an empty window, without activation, and the window after it."""
    params = ConvParams(weight[:, 0], bias, activation=False)
    return conv.scan(np.zeros((ROWS, *params.weight.shape)), u, params)


def lfm2(family: str, name: str) -> Pairs:
    """out = out_proj(C conv(B x)), B | C | x = in_proj(u), with every bias."""
    options = {"hidden_size": WIDTH, "conv_L_cache": 3, "conv_bias": True, "layer_types": ["conv"]}
    module, p = made(family, f"{name}Config", f"{name}ShortConv", options, layer_idx=0)
    held, cache = linear_cache()
    u, out = fed(lambda x: module(x, past_key_values=cache))
    B, C, x = np.split(Linear(p["in_proj.weight"], p["in_proj.bias"]).apply(u), 3, axis=2)
    y, M = convolved(p["conv.weight"], p["conv.bias"], B * x)
    yield "out", out, Linear(p["out_proj.weight"], p["out_proj.bias"]).apply(C * y)
    yield "M", held.conv_states[0].double().numpy(), M


def inkling(family: str, name: str, scale: float) -> Pairs:
    """out = scale (conv(u) + u)."""
    import torch

    torch.manual_seed(7)
    module = getattr(modeling(family), f"{name}ShortConvolution")(WIDTH, 4, layer_idx=0, conv_idx=0).eval()
    held, cache = linear_cache()
    u, out = fed(lambda x: module(x, past_key_values=cache))
    y, M = convolved(module.conv1d.weight.detach().double().numpy(), None, u)
    yield "out", out, scale * (y + u)
    yield "M", held.conv_states[0].double().numpy(), M


def minimax() -> Pairs:
    """Lightning attention is SSD with dt = 1 and a fixed A: S' = exp(A) S + v k^T, y = S' q."""
    heads, channels = 2, 3
    options: dict[str, Any] = {
        "hidden_size": WIDTH,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "head_dim": channels,
    }
    options |= {"block_size": CHUNK, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    module, p = made("minimax", "MiniMaxConfig", "MiniMaxLightningAttention", options, layer_idx=0)
    cache = modeling("minimax").MiniMaxCache()
    u, out = fed(lambda x: module(x, None, None, past_key_values=cache)[0])
    qkv = silu(einsum("bti, oi -> bto", u, p["qkv_proj.weight"])).reshape(ROWS, -1, heads, 3 * channels)
    q, k, v = np.split(qkv, 3, axis=3)
    params = SSDParams(A=-module.slope_rate.double().numpy().reshape(heads), dt_softplus=False)
    window = SSDWindow(v, np.ones(v.shape[:3]), k, q)
    y, S = ssd.scan(np.zeros((ROWS, heads, channels, channels)), window, params)
    y = rms(y.reshape(*u.shape[:2], -1), Norm(p["norm.weight"], module.norm.variance_epsilon))
    gate = sigmoid(einsum("bti, oi -> bto", u, p["output_gate.weight"]))
    yield "out", out, einsum("bti, oi -> bto", gate * y, p["out_proj.weight"])
    yield "S", cache.linear_cache[0].double().numpy(), S.swapaxes(2, 3)


def zamba_heads() -> Pairs:
    """Zamba with two heads: each reads its own half of the channels, and the projections out are summed."""
    heads = 2
    options: dict[str, Any] = {
        "hidden_size": WIDTH,
        "mamba_expand": 2,
        "mamba_d_state": 3,
        "mamba_d_conv": 4,
        "mamba_dt_rank": 2,
    }
    options |= {"n_mamba_heads": heads, "layers_block_type": ["linear_attention"], "num_attention_heads": 1}
    module, p = made("zamba", "ZambaConfig", "ZambaMambaMixer", options, layer_idx=0)
    held, cache = linear_cache()
    u, out = fed_steps(module, cache)
    want = np.zeros_like(out)
    states: list[Array] = []
    for head in range(heads):
        part = zamba_head(p, head, heads)
        y, after = reference.scan(new_state(part.mixer, ROWS), u, part)
        want = want + y
        states.append(after.S)
    yield "out", out, want
    yield "S", held.recurrent_states[0].double().numpy(), np.stack(states, axis=1)


def zamba_head(p: dict[str, Array], head: int, heads: int) -> Mamba1Layer:
    """The Mamba-1 layer that one head is; row 2d of in_proj is x_d, row 2d + 1 is z_d."""
    channels = len(p["conv1d.bias"]) // heads
    own = slice(head * channels, (head + 1) * channels)
    x, z = p["in_proj.weight"][0::2][own], p["in_proj.weight"][1::2][own]
    params = SelectiveParams(-np.exp(p["A_log"][head]), p["D"][head], p["dt_proj_bias"][head])
    window = ConvParams(p["conv1d.weight"][own, 0], p["conv1d.bias"][own])
    mixer = SelectiveMixer(window, params, p["x_proj_weight"][head], p["dt_proj_weight"][head])
    return Mamba1Layer(mixer, Linear(np.concatenate([x, z])), Linear(p["out_proj.weight"][:, own]))


def fed_steps(module: Any, cache: Any) -> tuple[Array, Array]:
    """A prompt, then one token at a time; continuing Mamba-1 with several tokens is tested elsewhere."""

    def run(x: Any) -> Any:
        import torch

        pieces = [x] if x.shape[1] == FEEDS[0] else x.split(1, dim=1)
        return torch.cat([module(piece, cache_params=cache) for piece in pieces], dim=1)

    return fed(run)


LAYERS: dict[str, Callable[[], Pairs]] = {
    "lfm2": lambda: lfm2("lfm2", "Lfm2"),
    "lfm2_moe": lambda: lfm2("lfm2_moe", "Lfm2Moe"),
    "lfm3": lambda: lfm2("lfm3", "Lfm3"),
    "inkling": lambda: inkling("inkling", "Inkling", 1.0),
    "inkling2": lambda: inkling("inkling2", "Inkling2", 5**-0.5),
    "minimax": minimax,
    "zamba, two heads": zamba_heads,
}
