"""Qwen3-Next's layout of the projections of the delta rule, by key head, which several projects load."""

import numpy as np

from ssmspec_ref.layers.layer import DeltaLayer
from ssmspec_ref.shapes import Array


def by_key_head(layer: DeltaLayer) -> tuple[Array, Array]:
    """The weights of in_proj_qkvz and in_proj_ba: for each key head q | k | v of its value heads | z of them, and b | a."""
    mixer = layer.mixer
    g, h, k, v = mixer.key_heads, mixer.value_heads, mixer.key_channels, mixer.value_channels
    q, key, value = np.split(layer.qkv_proj.weight, [g * k, 2 * g * k])
    parts = [q.reshape(g, k, -1), key.reshape(g, k, -1), value.reshape(g, h // g * v, -1)]
    parts.append(layer.z_proj.weight.reshape(g, h // g * v, -1))
    gates = [layer.b_proj.weight.reshape(g, h // g, -1), layer.a_proj.weight.reshape(g, h // g, -1)]
    width = layer.qkv_proj.weight.shape[1]
    return np.concatenate(parts, axis=1).reshape(-1, width), np.concatenate(gates, axis=1).reshape(-1, width)
