"""Mamba-2 with the suite's values."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from ...layers.linear import Linear
from ...layers.mamba2 import Gates, Mamba2
from ...models.config import GatedNormConfig, Mamba2Config
from ...operations import SSDInputs, SSDParams, Taps
from .kind import Given, Reader, Tensors, records, translated
from .tokens import Handing, Tokens


@dataclass(frozen=True)
class Between(Handing, Mamba2):
    """Mamba-2 between its projections."""

    tokens: Any = None
    gated: ClassVar[Any] = Gates


def config(mixer: Any, **more: Any) -> Mamba2Config:
    sizes = len(mixer.params.A), mixer.channels, mixer.state, mixer.groups, mixer.conv.weight.shape[1]
    return Mamba2Config(*sizes, mixer.x_groups, mixer.B_groups, **more)


def handing(mixer: Any, tokens: Tokens, exact: Tensors, gates: Any) -> Between:
    """Without z a norm follows, and the recurrence does not gate."""
    none, conv = Linear(torch.empty(0)), mixer.conv
    taps = translated(Taps, conv, exact)
    norm = torch.empty(0) if gates.z is None else None
    return Between(config(mixer), none, taps, translated(SSDParams, mixer.params, exact), none, norm, tokens=tokens)


def layer(read: Reader, record: Any) -> Mamba2:
    m, norm = record.mixer, record.norm
    gated = None if norm is None else GatedNormConfig(norm.groups, norm.eps, norm.norm_first)
    made = config(m, norm=gated, input_multiplier=record.input_multiplier)
    weight = None if norm is None else read.tensor(norm.weight)
    out, scales = read.linear(record.out_proj), read.tensor(record.multipliers)
    return Mamba2(
        made,
        read.linear(record.in_proj),
        read.taps(m.conv),
        translated(SSDParams, m.params, read.tensor),
        out,
        weight,
        scales,
    )


def bare(window: Any, params: Any) -> tuple[Any, tuple[str, ...]]:
    groups, state = window.B.shape[2:]
    sizes = {"channels": window.x.shape[3], "groups": groups, "state": state, "x_groups": None, "B_groups": None}
    return SimpleNamespace(kind="ssd", params=params, **sizes), ("x", "B", "C")


KIND = Given("ssd", ("mamba2",), records(SSDInputs, SSDParams), lambda gates: (gates.dt, gates.z), handing, layer, bare)
