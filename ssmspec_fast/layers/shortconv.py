"""LFM2's short convolution from residual stream to residual stream, with its recurrence in PyTorch.

    B | C | x = in_proj u                                                     (1)
    y_t = C_t (bias + sum_l weight_{w-1-l} (B x)_{t-l})    the recurrence     (2)
    out = out_proj y                                                          (3)

Its state is the last w - 1 products B x. Nothing is convolved in front of it: the convolution of the engine's other layers
has no channels here, so that each method moves the products on as it does the state of any recurrence.
Source: modeling_lfm2.py of transformers 5.23.0; arXiv:2511.23404.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from ..models.config import ConvSizes, RecurrentConfig
from ..operations import Operations, Rows, Taps
from ..operations.arithmetic import exact
from ..operations.torch_recurrences import Sequential
from .linear import Linear, Product
from .recurrent import Recurrent

if TYPE_CHECKING:
    from ..families.source import Source


@dataclass(frozen=True)
class ShortConvConfig(RecurrentConfig):
    """`bias` is that of the convolution and of both projections."""

    channels: int
    width: int
    bias: bool = False

    @property
    def conv(self) -> ConvSizes:
        return ConvSizes(0, 2, False)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.channels, self.width - 1

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.channels,)

    @property
    def ring_sizes(self) -> tuple[int, int]:
        return 2 * self.channels, 0


class ShortConvInputs(NamedTuple):
    """B, C, x (b, t, d)."""

    B: Tensor
    C: Tensor
    x: Tensor

    @property
    def outputs(self) -> dict[str, str | None]:
        return {"C": "B"}


class ShortConvParams(NamedTuple):
    """The taps (d, w), the last of them for the newest product, and a bias (d)."""

    weight: Tensor
    bias: Tensor | None = None


class ShortConvTokens(NamedTuple):
    product: Tensor
    taps: Tensor


class ShortConv(Sequential):
    """The recurrence (2), token by token."""

    def prepare(self, inputs: ShortConvInputs, params: ShortConvParams) -> ShortConvTokens:
        wide = exact(inputs.x)
        product = inputs.B.to(wide) * inputs.x.to(wide)
        return ShortConvTokens(product, params.weight.to(wide).expand(*product.shape[:2], -1, -1))

    def step(self, S: Tensor, token: ShortConvTokens) -> tuple[Tensor, Tensor]:
        columns = torch.cat([S, token.product[..., None]], dim=-1)
        return self.arithmetic.sum(columns * token.taps), columns[..., 1:]

    def finish(self, y: Tensor, inputs: ShortConvInputs, params: ShortConvParams) -> Tensor:
        y = y if params.bias is None else y + params.bias
        return (inputs.C.to(y.dtype) * y).to(inputs.x.dtype)


@dataclass(frozen=True)
class ShortConvLayer(Recurrent):
    config: ShortConvConfig
    in_proj: Linear
    params: ShortConvParams
    out_proj: Linear
    kind: ClassVar[str] = "shortconv"
    home: ClassVar[str] = "conv"

    @classmethod
    def stored(cls, source: "Source", prefix: str, width: int, c: ShortConvConfig) -> Self:
        """As transformers stores it; the filter is one of torch's grouped convolutions (d, 1, w)."""
        taps = source.taps(f"{prefix}.conv", ConvSizes(c.channels, c.width, c.bias))
        return cls(
            c,
            source.linear(f"{prefix}.in_proj", 3 * c.channels, width, c.bias),
            ShortConvParams(taps.weight, taps.bias),
            source.linear(f"{prefix}.out_proj", width, c.channels, c.bias),
        )

    @property
    def taps(self) -> Taps:  # type: ignore[override]
        """Of the convolution of no channels."""
        return Taps(self.params.weight[:0, :2], activation=False)

    @property
    def projection(self) -> Linear:
        return self.in_proj

    @property
    def reads(self) -> slice:
        return slice(0, 0)

    def inputs(self, u: Rows, operations: Operations, room: Tensor | None = None) -> tuple[Tensor, Any]:
        whole = self.in_proj(u, operations, room)
        return whole[..., :0], whole

    def project(self, c: Tensor, gates: Any, operations: Operations) -> ShortConvInputs:
        return ShortConvInputs(*gates.chunk(3, dim=-1))

    def moving(self, projected: Tensor, c: Tensor, *beside: Tensor) -> ShortConvInputs:
        return ShortConvInputs(*projected.chunk(3, dim=-1))

    def room(self, new: Callable[..., Tensor]) -> ShortConvInputs:
        return ShortConvInputs(*(new(self.config.channels) for _ in range(3)))

    def output(self, y: Any, gates: Any, operations: Operations) -> Product:
        return Product(self.out_proj, y)
