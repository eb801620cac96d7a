"""Mamba-1 with the suite's values."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ssmspec_ref.errors import Unsupported

from ...layers.linear import Linear
from ...layers.mamba1 import Mamba1
from ...models.config import Mamba1Config
from ...operations import SelectiveInputs, SelectiveParams, Taps
from .kind import Given, Reader, Tensors, records, translated
from .tokens import Handing, Tokens


@dataclass(frozen=True)
class Between(Handing, Mamba1):
    """Mamba-1 between its projections."""

    tokens: Any = None
    gated: ClassVar[Any] = staticmethod(lambda z: z)


def config(mixer: Any) -> Mamba1Config:
    inner, state = mixer.params.A.shape
    return Mamba1Config(inner, state, mixer.dt_proj.shape[1], mixer.conv.weight.shape[1])


def handing(mixer: Any, tokens: Tokens, exact: Tensors, gates: Any) -> Between:
    none, conv = Linear(torch.empty(0)), mixer.conv
    taps = translated(Taps, conv, exact)
    products = Linear(exact(mixer.x_proj)), Linear(exact(mixer.dt_proj))
    return Between(config(mixer), none, taps, *products, translated(SelectiveParams, mixer.params, exact), none, tokens)


def layer(read: Reader, record: Any) -> Mamba1:
    m = record.mixer
    if m.dt_norm is not None:
        raise Unsupported("this Mamba-1 layer has norms of dt, B and C; the engine's has none")
    inner = Linear(read.tensor(m.x_proj)), Linear(read.tensor(m.dt_proj))
    params, out = translated(SelectiveParams, m.params, read.tensor), read.linear(record.out_proj)
    return Mamba1(config(m), read.linear(record.in_proj), read.taps(m.conv), *inner, params, out)


KIND = Given("selective", ("mamba1",), records(SelectiveInputs, SelectiveParams), lambda gates: (gates.z,), handing, layer)
