"""Multi-head latent attention without positions: a latent and a shared key of each token, not keys and values of heads.

    q = q_proj u, for each head q_own | q_shared;    l | s = kv_proj u,  c = rms(l)          (1)
    k_i = [K c_i | s_i],  v_i = V c_i                for each head, K and V its maps         (2)
    w_ij = softmax over j <= i of (e + m)^-1/2 q_i . k_j                                     (3)
    out_i = out_proj of the heads' sum_j w_ij v_j                                            (4)

e and m are the channels of q_own and of q_shared. A cache holds [c | s] of each token, whatever the number of heads.

`compressed` is an independent derivation over the one group that the cache holds; no key or value of a head is formed:

    q' = [K^T q_own | q_shared],   q . k_j = q' . [c_j | s_j],   sum_j w_ij v_j = V sum_j w_ij c_j    (5)

Source: arXiv:2405.04434, section 2.1, (5) in section 2.1.2; arXiv:2510.26692, section 4: nothing is rotated.
"""

from dataclasses import dataclass

import numpy as np
from numpy import concatenate, einsum, exp

from ..checks import checked
from ..errors import ShapeMismatch
from ..layers.linear import Linear
from ..layers.norm import Norm, rms
from ..records import Record
from ..shapes import KeyMaps, Latents, Query, Residual, ValueMaps
from . import AttentionParams, AttentionWindow, dense


@dataclass(frozen=True)
class LatentLayer(Record):
    """`q_proj` gives q of all heads, `kv_proj` l | s (1); `keys` and `values` are K and V (2).

    Raises: ShapeMismatch for maps that do not fit.
    """

    q_proj: Linear
    kv_proj: Linear
    norm: Norm
    keys: KeyMaps
    values: ValueMaps
    out_proj: Linear

    def __post_init__(self) -> None:
        super().__post_init__()
        heads, own, rank = self.keys.shape
        wanted = {"norm": rank, "q_proj": heads * (own + self.shared)}
        found = {"norm": len(self.norm.weight), "q_proj": self.q_proj.outputs}
        if found != wanted or self.shared < 0:
            raise ShapeMismatch(f"outputs of a latent attention are {found}; for {heads} heads they must be {wanted}")

    @property
    def shared(self) -> int:
        """Channels of the key that all heads share."""
        return self.kv_proj.outputs - self.keys.shape[2]

    def project(self, u: Residual) -> tuple[Query, Latents]:
        """The queries, and what the cache holds (1)."""
        heads, _, rank = self.keys.shape
        both = self.kv_proj.apply(u)
        held = concatenate([rms(both[..., :rank], self.norm), both[..., rank:]], axis=2)
        return self.q_proj.apply(u).reshape(*u.shape[:2], heads, -1), held


@checked
def scan(u: Residual, layer: LatentLayer) -> Residual:
    """The outputs at every token of whole sequences, token by token over keys and values of heads: (1) to (4).

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    """
    heads, own, rank = layer.keys.shape
    q, held = layer.project(u)  # (1)
    y = np.zeros((*u.shape[:2], heads, layer.values.shape[1]))
    for i in range(u.shape[1]):
        for h in range(heads):
            c, s = held[:, : i + 1, :rank], held[:, : i + 1, rank:]
            k, v = concatenate([c @ layer.keys[h].T, s], axis=2), c @ layer.values[h].T  # (2)
            score = einsum("be, ble -> bl", q[:, i, h], k) * (own + layer.shared) ** -0.5
            w = exp(score - score.max(axis=1, keepdims=True))
            y[:, i, h] = einsum("bl, blv -> bv", w / w.sum(axis=1, keepdims=True), v)  # (3)
    return layer.out_proj.apply(y.reshape(*u.shape[:2], -1))  # (4)


@checked
def compressed(u: Residual, layer: LatentLayer) -> Residual:
    """The same without keys and values of heads: (1), (5), and `dense` attention over one group.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    """
    _, own, rank = layer.keys.shape
    q, held = layer.project(u)  # (1)
    short = concatenate([einsum("hkr, bthk -> bthr", layer.keys, q[..., :own]), q[..., own:]], axis=3)
    group = held[:, :, None]
    read = dense.scan(AttentionWindow(short, group, group), AttentionParams((own + layer.shared) ** -0.5))
    y = einsum("hvr, bthr -> bthv", layer.values, read[..., :rank])  # (5)
    return layer.out_proj.apply(y.reshape(*u.shape[:2], -1))
