"""Mamba-3 with the suite's values."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...layers.linear import Linear
from ...layers.mamba3 import Mamba3Config, Mamba3Inputs, Mamba3Layer, Mamba3Params
from ...models.config import GatedNormConfig
from .kind import Given, Reader, Tensors, records, translated
from .tokens import Handing, Tokens

NAMES = ("x", "dt", "A", "trap", "angle", "B", "C", "z")


def passing(gates: Any) -> tuple[Any, ...]:
    return tuple(getattr(gates, name) for name in NAMES)


def projected(
    x: Tensor, dt: Tensor, A: Tensor, trap: Tensor, angle: Tensor, B: Tensor, C: Tensor, z: Tensor | None
) -> Tensor:
    """z | x | B | C | dt | A | trap | angle, as the projection returns them; zeros where nothing is gated."""
    flat = (x if z is None else z, x, B, C, dt, A, trap, angle)
    return torch.cat([a.flatten(2) for a in flat], dim=-1)


@dataclass(frozen=True)
class Between(Handing, Mamba3Layer):
    """The layer between its projections."""

    tokens: Any = None
    gated: ClassVar[Any] = staticmethod(projected)

    def output(self, y: Any, gates: Any, operations: Any) -> Any:
        return Handing.output(self, y, gates, operations)


def config(mixer: Any, norm: GatedNormConfig | None = None) -> Mamba3Config:
    heads, rank, state = mixer.params.B_bias.shape
    return Mamba3Config(heads, mixer.channels, state, mixer.groups, mixer.angles, rank, norm=norm)


def handing(mixer: Any, tokens: Tokens, exact: Tensors, gates: Any) -> Between:
    """Without z a norm follows, and the recurrence does not gate."""
    none, norm = Linear(torch.empty(0)), torch.empty(0) if gates.z is None else None
    return Between(config(mixer), none, translated(Mamba3Params, mixer.params, exact), none, norm, tokens)


def layer(read: Reader, record: Any) -> Mamba3Layer:
    norm = record.norm
    made = config(record.mixer, None if norm is None else GatedNormConfig(norm.groups, norm.eps, norm.norm_first))
    weight = None if norm is None else read.tensor(norm.weight)
    params = translated(Mamba3Params, record.mixer.params, read.tensor)
    return Mamba3Layer(made, read.linear(record.in_proj), params, read.linear(record.out_proj), weight)


def bare(window: Any, params: Any) -> tuple[Any, tuple[str, ...]]:
    sizes = {"channels": window.x.shape[3], "groups": window.B.shape[3], "angles": window.angle.shape[2]}
    return SimpleNamespace(kind="mamba3", params=params, **sizes), ()


KIND = Given("mamba3", ("mamba3",), records(Mamba3Inputs, Mamba3Params), passing, handing, layer, bare)
