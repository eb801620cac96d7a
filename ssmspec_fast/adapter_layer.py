"""A layer of the engine whose projections hand on what the suite gives: a token is a number that is looked up.

What the number of no token names is NaN.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from ssmspec_ref.shapes import Array

from .adapter_tensors import exact
from .config import BlockConfig, Branch, DeltaConfig, Mamba1Config, Mamba2Config, ModelConfig, NormConfig
from .layers.delta import Delta
from .layers.delta import Gates as DeltaGates
from .layers.linear import Linear, Product
from .layers.mamba1 import Mamba1
from .layers.mamba2 import Gates as SSDGates
from .layers.mamba2 import Mamba2
from .model import Block, Model, Recurrent
from .operations import DeltaParams, Operations, SelectiveParams, SSDParams, Taps

LONGEST = 512
"""Tokens of a sequence."""


class Tokens:
    """What the projections would make of each token: `pre` and the gates, by number; number 0 is no token."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.held: list[Tensor | None] = []
        self.count = 0

    def add(self, *parts: Array | None) -> Tensor:
        """The numbers (b, t) of the tokens of a window."""
        new = [exact(part, self.device) for part in parts]
        if not self.held:
            self.held = [None if x is None else x.new_full((1, *x.shape[2:]), float("nan")) for x in new]
        for i, x in enumerate(new):
            held = self.held[i]
            self.held[i] = None if x is None or held is None else torch.cat([held, x.flatten(0, 1)])
        b, t = parts[0].shape[:2]  # type: ignore[union-attr]
        first, self.count = 1 + self.count, self.count + b * t
        return torch.arange(first, first + b * t, device=self.device).view(b, t)

    def at(self, u: Tensor) -> list[Tensor | None]:
        return [None if x is None else x[u[..., 0].long()] for x in self.held]


class Given:
    """A mixer whose projections hand on what is given; `gated` makes a record of what passes the convolution by."""

    config: Any
    tokens: Any
    gated: ClassVar[Any]

    @property
    def projection(self) -> Linear:
        return Linear(torch.empty((self.config.conv.channels, 0), device=self.tokens.device))

    @property
    def reads(self) -> slice:
        return slice(0, self.config.conv.channels)

    def inputs(self, u: Any, operations: Operations, room: Tensor | None = None) -> Any:
        """`pre`, in its room, and the gates."""
        pre, *gates = self.tokens.at(u)
        return pre if room is None else room.copy_(pre), self.gated(*gates)

    def output(self, y: Any, gates: Any, operations: Operations) -> Product:
        return Product(None, y.flatten(2))


@dataclass(frozen=True)
class GivenSSD(Given, Mamba2):
    """Mamba-2 between its projections."""

    tokens: Any = None
    gated: ClassVar[Any] = SSDGates


@dataclass(frozen=True)
class GivenDelta(Given, Delta):
    """Gated DeltaNet between its projections; nothing reads the gate behind its norm."""

    tokens: Any = None
    gated: ClassVar[Any] = staticmethod(lambda g, beta: DeltaGates(g, beta, g))


@dataclass(frozen=True)
class GivenSelective(Given, Mamba1):
    """Mamba-1 between its projections."""

    tokens: Any = None
    gated: ClassVar[Any] = staticmethod(lambda z: z)


def parts(inputs: Any) -> tuple[Array | None, ...]:
    """`pre` and the gates of a window, in the order in which the layers above read them."""
    gates = inputs.gates
    if hasattr(gates, "beta"):
        return inputs.pre, gates.g, gates.beta
    return (inputs.pre, gates.dt, gates.z) if hasattr(gates, "dt") else (inputs.pre, gates.z)


def layer_of(mixer: Any, gated: bool, tokens: Tokens) -> Recurrent:
    """The engine's layer of a record of the reference; `gated` where z gates y inside."""
    tensor = partial(exact, device=tokens.device)
    none, width, p = Linear(torch.empty(0)), mixer.conv.weight.shape[1], mixer.params
    taps = Taps(tensor(mixer.conv.weight), tensor(mixer.conv.bias), mixer.conv.activation)
    if hasattr(mixer, "key_heads"):
        sizes = mixer.key_heads, mixer.value_heads, mixer.key_channels, mixer.value_channels
        unread = torch.zeros(mixer.value_heads, device=tokens.device)
        rule = DeltaParams(unread, unread, p.l2_norm, p.scale, p.eps)
        return GivenDelta(DeltaConfig(*sizes, width, p.eps), none, none, none, none, taps, rule, unread, none, tokens)
    fixed = tensor(p.A), tensor(p.D), tensor(p.dt_bias), p.dt_softplus
    if hasattr(mixer, "x_proj"):
        inner = Mamba1Config(p.A.shape[0], p.A.shape[1], mixer.dt_proj.shape[1], width)
        products = Linear(tensor(mixer.x_proj)), Linear(tensor(mixer.dt_proj))
        return GivenSelective(inner, none, taps, *products, SelectiveParams(*fixed), none, tokens)
    groups = mixer.groups, width, mixer.x_groups, mixer.B_groups
    config = Mamba2Config(p.A.shape[0], mixer.channels, mixer.state, *groups)
    norm = None if gated else torch.empty(0)  # with a norm behind it, the recurrence does not gate
    return GivenSSD(config, none, taps, SSDParams(*fixed, p.dt_limit), none, norm, tokens=tokens)


def model_of(layer: Recurrent, outputs: int, device: str) -> Model:
    """One layer whose tokens pass embedding, norms and head as they are."""
    config = ModelConfig("given", LONGEST, 1, (BlockConfig((Branch(layer.config),)),), NormConfig(0.0))
    numbers = torch.arange(2**16, device=device, dtype=torch.float32)[:, None]
    same: Any = lambda x, operations, residual=None: x  # noqa: E731
    return Model(config, numbers, (Block((layer,), same),), same, torch.eye(outputs, device=device))
