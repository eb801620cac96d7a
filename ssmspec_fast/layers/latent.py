"""Multi-head latent attention without positions, over a compressed cache: one latent and one shared key for each token.

    q = q_proj u = [q_own | q_shared] of each head;  l | s = kv_proj u,  c = rms(l)             (1)
    k = [K c | s],  v = V c                    for each head, K and V the rows of kv_b_proj      (2)
    q . k = [K^T q_own | q_shared] . [c | s],   sum p v = V (sum p c)                            (3)

By (3) neither keys nor values of heads are formed: attention is that of queries [K^T q_own | q_shared] over one group with
keys and values [c | s], whose first channels V reads. The cache holds [c | s] as keys and as values.
Source: arXiv:2405.04434, section 2.1; arXiv:2510.26692, section 4, and modeling_kimi_linear.py of transformers 5.23, where
nothing is rotated.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..models.config import LatentConfig
from ..operations import Operations, Rows
from .attention import Attention
from .linear import Product, joined
from .norm import Norm
from .rotary import Positions

if TYPE_CHECKING:
    from ..families.source import Source


@dataclass(frozen=True)
class LatentAttention(Attention):
    """`qkv_proj` gives q, l and s; `key_maps` is K^T (h, c, own), `value_maps` V (h, values, c)."""

    config: LatentConfig
    norm: Norm | None = None
    key_maps: Tensor | None = None
    value_maps: Tensor | None = None

    @property
    def scale(self) -> float:
        return (self.config.own + self.config.shared) ** -0.5

    def inputs(self, u: Rows, positions: Positions, operations: Operations) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """(1), and the queries of (3)."""
        assert self.norm is not None
        assert self.key_maps is not None
        c, lead = self.config, u.shape[:-1]
        pieces = [c.heads * (c.own + c.shared), c.rank, c.shared]
        q, latent, shared = torch.split(self.qkv_proj(u, operations), pieces, dim=-1)
        own, rest = torch.split(q.reshape(*lead, c.heads, -1), [c.own, c.shared], dim=-1)
        held = torch.cat([self.norm(latent.contiguous(), operations), shared], dim=-1)[..., None, :]
        return torch.cat([by_head(own, self.key_maps, operations), rest], dim=-1), held, held, None

    def output(self, y: Tensor, gate: Tensor | None, operations: Operations) -> Product:
        assert self.value_maps is not None
        values = by_head(y[..., : self.config.rank], self.value_maps, operations)
        return Product(self.out_proj, values.flatten(-2))


def by_head(x: Tensor, maps: Tensor, operations: Operations) -> Tensor:
    """maps (h, o, i) times x (.., h, i); each head by itself where bits may not depend on other rows."""
    if not operations.bitwise:
        return torch.einsum("...hi, hoi -> ...ho", x, maps)
    parts = (operations.linear(x[..., h, :].contiguous(), W) for h, W in enumerate(maps))
    return torch.stack(tuple(parts), dim=-2)


def stored(source: "Source", prefix: str, width: int, c: LatentConfig) -> LatentAttention:
    """As DeepSeek and Kimi Linear store it, without a low rank of the queries."""
    whole = c.own + c.shared
    q = source.linear(f"{prefix}.q_proj", c.heads * whole, width)
    kv = source.linear(f"{prefix}.kv_a_proj_with_mqa", c.rank + c.shared, width)
    norm = Norm(source.exact(f"{prefix}.kv_a_layernorm.weight", c.rank), c.eps)
    both = source.weight(f"{prefix}.kv_b_proj.weight", c.heads * (c.own + c.values), c.rank)
    K, V = torch.split(both.view(c.heads, c.own + c.values, c.rank), [c.own, c.values], dim=1)
    out = source.linear(f"{prefix}.o_proj", width, c.heads * c.values)
    return LatentAttention(c, joined(q, kv), out, norm=norm, key_maps=K.mT.contiguous(), value_maps=V.contiguous())
