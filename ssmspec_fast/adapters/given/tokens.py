"""Projections that return the suite's values: a token is an index into a table. Values that no token has are NaN."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from ssmspec_ref.shapes import Array

from ...layers.linear import Linear, Product
from ...operations import Operations
from ..tensors import exact


class Tokens:
    """What the projections return for each token: `pre` and the gates, by number; number 0 is padding."""

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


class Handing:
    """A mixer whose projections return given values; `gated` makes a record of what bypasses the convolution."""

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
        """`pre`, written into `room`, and the gates."""
        pre, *gates = self.tokens.at(u)
        return pre if room is None else room.copy_(pre), self.gated(*gates)

    def output(self, y: Any, gates: Any, operations: Operations) -> Product:
        return Product(None, y.flatten(2))
