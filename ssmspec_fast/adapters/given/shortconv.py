"""The short convolution with the suite's values."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...layers.linear import Linear
from ...layers.shortconv import ShortConvConfig, ShortConvInputs, ShortConvLayer, ShortConvParams
from .kind import Given, Reader, Tensors, records, translated
from .tokens import Handing, Tokens


def beside(B: Tensor, C: Tensor, x: Tensor) -> Tensor:
    """B | C | x, as the projection returns them."""
    return torch.cat([B, C, x], dim=-1)


@dataclass(frozen=True)
class Between(Handing, ShortConvLayer):
    """The layer between its projections."""

    tokens: Any = None
    gated: ClassVar[Any] = staticmethod(beside)


def config(params: Any) -> ShortConvConfig:
    channels, width = params.weight.shape
    return ShortConvConfig(channels, width, params.bias is not None)


def handing(mixer: Any, tokens: Tokens, exact: Tensors, gates: Any) -> Between:
    none = Linear(torch.empty(0))
    return Between(config(mixer.params), none, translated(ShortConvParams, mixer.params, exact), none, tokens)


def layer(read: Reader, record: Any) -> ShortConvLayer:
    params = record.mixer.params
    return ShortConvLayer(
        config(params),
        read.linear(record.in_proj),
        translated(ShortConvParams, params, read.tensor),
        read.linear(record.out_proj),
    )


def bare(window: Any, params: Any) -> tuple[Any, tuple[str, ...]]:
    return SimpleNamespace(kind="shortconv", params=params), ()


INPUTS = records(ShortConvInputs, ShortConvParams)
KIND = Given("shortconv", ("shortconv",), INPUTS, lambda gates: (gates.B, gates.C, gates.x), handing, layer, bare)
