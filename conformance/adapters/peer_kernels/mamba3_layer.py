"""The whole layer of Mamba-3 in mamba-ssm, SISO: a prompt from an empty cache.

The module is in bf16, the type to which its scan casts what it gets. What it leaves in its cache is read as the state. Its
step is of a kernel in CuTe (`mamba3_step_fn`), and a prompt of several ranks is of one in TileLang: no interpreter runs them.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from ssmspec_ref.layers.mamba3 import Mamba3Layer
from ssmspec_ref.mamba3 import Pieces, packed
from ssmspec_ref.shapes import Array, Mask

from .siso import CHUNK, Siso
from .sources import module

HOME = "mamba_ssm.modules.mamba3"


class Prompted:
    """One module with its cache; `used` is what it computes with. `combined` replaces its scan if given."""

    def __init__(self, siso: Siso, repaired: bool, layer: Mamba3Layer, rows: int) -> None:
        self.torch, self.tensor, self.used = siso.torch, siso.tensor, layer
        self.combined = siso.uncast if repaired else siso.many
        self.module = built(layer, siso)
        self.cache = SimpleNamespace(key_value_memory_dict={}, seqlen_offset=0)

    def forward(self, u: Array, live: Mask | None = None) -> Array:
        home = module(HOME)
        before, home.mamba3_siso_combined = home.mamba3_siso_combined, self.combined
        try:
            with self.torch.no_grad():
                out = self.module(self.tensor(u).bfloat16(), inference_params=self.cache)
        finally:
            home.mamba3_siso_combined = before
        return self.tensor.back(out)[0]

    def state(self) -> tuple[Array, Array]:
        angle, matrix, key, value = self.tensor.back(*self.cache.key_value_memory_dict[0])
        return np.zeros((len(angle), 0, 2)), packed(Pieces(matrix, angle, key.transpose(0, 2, 1, 3), value))


def built(layer: Mamba3Layer, siso: Siso) -> Any:
    """The module with the weights of a layer."""
    mixer, p = layer.mixer, layer.mixer.params
    inner, width = p.heads * mixer.channels, layer.out_proj.weight.shape[0]
    made = module(HOME).Mamba3(
        width, d_state=p.states, expand=inner / width, headdim=mixer.channels, ngroups=mixer.groups,
        rope_fraction=2 * mixer.angles / p.states, A_floor=p.A_floor, is_outproj_norm=layer.norm is not None,
        chunk_size=CHUNK, layer_idx=0, device=siso.tensor.device, dtype=siso.torch.bfloat16,
    )  # fmt: skip
    weights = {
        "in_proj.weight": layer.in_proj.weight, "out_proj.weight": layer.out_proj.weight, "dt_bias": p.dt_bias, "D": p.D,
        "B_bias": p.B_bias, "C_bias": p.C_bias, "B_norm.weight": p.B_norm, "C_norm.weight": p.C_norm,
    }  # fmt: skip
    if layer.norm is not None:
        weights["norm.weight"], made.norm.eps = layer.norm.weight, layer.norm.eps
    made.B_norm.eps = made.C_norm.eps = p.eps
    made.load_state_dict({name: siso.tensor(weight) for name, weight in weights.items()}, strict=True)
    return made


def prompted(siso: Siso, repaired: bool = False) -> Callable[[Mamba3Layer, int], Prompted]:
    return lambda layer, rows: Prompted(siso, repaired, layer, rows)
