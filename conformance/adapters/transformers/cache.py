"""A transformers layer with its own cache, called through the suite's `Layer` interface."""

from typing import Any

import numpy as np

from ssmspec_ref.layers.mixer import new_state
from ssmspec_ref.shapes import Array, Mask

from .families import Family
from .guard import quiet


class CachedLayer:
    """One module, one cache; `used` is the record of the weights that the module computes with.

    Masks of padded batches are created like in transformers' models, by `create_recurrent_attention_mask`, which gives no
    mask for a single token. Rollback requires that the cache records its past from the first token.
    """

    def __init__(self, family: Family, layer: Any, rows: int, dtype: str = "float32", recording: bool = False) -> None:
        import torch
        from transformers import cache_utils

        kinds: Any = cache_utils

        self.dtype = getattr(torch, dtype)
        self.module, self.config, self.used = family.build(layer, self.dtype)
        self.held = kinds.LinearAttentionLayer()
        self.cache = kinds.Cache(layers=[self.held])
        if recording:
            self.cache.activate_past_recording()

    def forward(self, u: Array, live: Mask | None = None) -> Array:
        import torch
        from transformers.masking_utils import create_recurrent_attention_mask

        inputs = torch.as_tensor(u).to(self.dtype)
        mask = None if live is None else torch.as_tensor(live)
        with torch.no_grad(), quiet():
            mask = create_recurrent_attention_mask(self.config, inputs, mask, self.cache)
            out = self.module(inputs, cache_params=self.cache, attention_mask=mask)
        return out.double().numpy()

    def state(self) -> tuple[Array, Array]:
        M, S = (held[0].double().numpy() for held in (self.held.conv_states, self.held.recurrent_states))
        S = S.reshape(new_state(self.used.mixer, len(S)).S.shape)  # Zamba gives the state an axis of heads
        width = self.module.conv_kernel_size
        M = np.concatenate([np.zeros((*M.shape[:2], width)), M], axis=2)[:, :, -width:]
        return M, S.copy()

    def rollback(self, tokens: int) -> None:
        self.cache.crop(-tokens)
