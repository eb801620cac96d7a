"""Latent attention over its compressed cache is attention over the keys and values of every head that it stands for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ssmspec_fast.layers.latent import LatentAttention, by_head, stored
from ssmspec_fast.layers.norm import Norm
from ssmspec_fast.layers.rotary import Positions
from ssmspec_fast.models.config import LatentConfig
from ssmspec_fast.operations.torch_ops import TorchOperations

from .models import WIDTH, Drawn

TOKENS = 6
C = LatentConfig(3, 1, 7, rank=5, own=4, shared=2, values=3)
SHAPES = {
    "q_proj": (C.heads * (C.own + C.shared), WIDTH),
    "kv_a_proj_with_mqa": (C.rank + C.shared, WIDTH),
    "kv_b_proj": (C.heads * (C.own + C.values), C.rank),
    "o_proj": (WIDTH, C.heads * C.values),
}
U = torch.randn(TOKENS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def drawn() -> LatentAttention:
    return stored(Drawn(torch.float64, 3), "attention", WIDTH, C)


def expanded(u: Tensor) -> Tensor:
    """(1) and (2) as printed: keys and values of every head are formed, and a token reads itself and those before it."""
    source = Drawn(torch.float64, 3)
    W = {name: source.weight(f"attention.{name}.weight", *shape) for name, shape in SHAPES.items()}
    q = (u @ W["q_proj"].T).view(TOKENS, C.heads, C.own + C.shared)
    latent, shared = torch.split(u @ W["kv_a_proj_with_mqa"].T, [C.rank, C.shared], dim=-1)
    latent = latent / (latent.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    latent = latent * source.exact("attention.kv_a_layernorm.weight", C.rank)
    keys, values = torch.split((latent @ W["kv_b_proj"].T).view(TOKENS, C.heads, -1), [C.own, C.values], dim=-1)
    keys = torch.cat([keys, shared[:, None].expand(TOKENS, C.heads, C.shared)], dim=-1)
    scores = torch.einsum("thk, shk -> hts", q, keys) / (C.own + C.shared) ** 0.5
    later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    return torch.einsum("hts, shv -> thv", weights, values).flatten(1) @ W["o_proj"].T


def came(layer: LatentAttention, bitwise: bool = False) -> Tensor:
    """The outputs of one window over an empty cache."""
    operations, zero = TorchOperations(bitwise), torch.zeros(1, dtype=torch.int64)
    positions: Any = Positions(torch.arange(TOKENS)[None])
    q, k, v, gate = layer.inputs(U[None], positions, operations)
    assert (tuple(k.shape), k is v, gate) == ((1, TOKENS, 1, C.rank + C.shared), True, None)
    K, V = (torch.zeros((1, TOKENS, 1, C.channels), dtype=torch.float64) for _ in range(2))
    y = operations.attention(q, k, v, K, V, zero, scale=layer.scale, slots=zero)
    return layer.output(y, gate, operations).taken(operations)[0]


def apart(layer: LatentAttention) -> float:
    wanted = expanded(U)
    return float((came(layer) - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("bitwise", [False, True])
def test_the_compressed_form_is_the_expanded_one(bitwise: bool) -> None:
    """Both round some hundred operations in float64: 1e-13 of the largest output."""
    wanted = expanded(U)
    assert float((came(drawn(), bitwise) - wanted).abs().max()) <= 1e-13 * float(wanted.abs().max())


class ScaledByTheCache(LatentAttention):
    @property
    def scale(self) -> float:
        return self.config.channels**-0.5


def of(kind: type[LatentAttention], layer: LatentAttention) -> LatentAttention:
    return kind(**{name: getattr(layer, name) for name in layer.__dataclass_fields__})


def rolled(maps: Tensor | None) -> Tensor:
    assert maps is not None
    return maps.roll(1, 0)


FAULTS: dict[str, Callable[[LatentAttention], LatentAttention]] = {
    "scaled by the channels of the cache": lambda layer: of(ScaledByTheCache, layer),
    "another eps": lambda layer: replace(layer, norm=Norm(torch.ones(C.rank, dtype=torch.float64), 1e-2)),
    "keys of another head": lambda layer: replace(layer, key_maps=rolled(layer.key_maps)),
    "values of another head": lambda layer: replace(layer, value_maps=rolled(layer.value_maps)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault: str) -> None:
    assert apart(FAULTS[fault](drawn())) > 1e-4


def test_a_token_has_the_same_bits_alone_and_among_others() -> None:
    operations, random = TorchOperations(bitwise=True), torch.Generator().manual_seed(2)
    maps, x = torch.randn(3, 4, 5, generator=random), torch.randn(4, 6, 3, 5, generator=random)
    whole = by_head(x, maps, operations)
    assert torch.equal(whole[2:3, 1:4], by_head(x[2:3, 1:4], maps, operations))
