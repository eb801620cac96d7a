"""All operations in plain PyTorch: on any device, with fp32 intermediates, or float64 for a float64 model."""

from typing import Literal

import torch
from torch import Tensor

from ..recurrences import RECURRENCES
from . import OneLaunch, Rows
from .arithmetic import Arithmetic, exact
from .slots import down_tree
from .torch_attention import CacheAttention
from .torch_conv import Convolution


class TorchOperations(OneLaunch):
    """`bitwise`: the bits of a row do not depend on other rows (`arithmetic`).

    `windows`: a recurrence processes several tokens at once where it can (`torch_windows`); never with bitwise arithmetic.
    """

    def __init__(self, bitwise: bool = False, windows: bool = False, arithmetic: Arithmetic | None = None) -> None:
        self.bitwise = bitwise
        self.arithmetic = Arithmetic(bitwise) if arithmetic is None else arithmetic
        self.recurrences = {name: kind.torch(self.arithmetic, windows) for name, kind in RECURRENCES.items()}
        conv, attention = Convolution(self.arithmetic), CacheAttention(self.arithmetic)
        self.conv_window, self.conv_packed = conv.window, conv.packed
        self.conv_tree, self.conv_commit = conv.tree, conv.commit
        self.attention, self.attention_packed = attention.window, attention.packed
        self.append_packed, self.kv_append = attention.append_packed, attention.append
        self.kv_compact = attention.compact

    def linear(self, x: Rows, W: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
        assert isinstance(x, Tensor)  # `linear_normed` computes the norm itself
        y = self.arithmetic.product(x, W)
        y = y if bias is None else y + bias
        return y if out is None else out.copy_(y)

    def linear_normed(
        self, x: Rows, W: Tensor, bias: Tensor | None = None, *, residual: Tensor, weight: Tensor, eps: float
    ) -> Tensor:
        return self.norm(self.linear(x, W, bias), weight, residual=residual, eps=eps)

    def logits(self, x: Tensor, W: Tensor) -> Tensor:
        return self.arithmetic.wide_product(x, W, exact(x))

    def norm(self, x: Tensor, weight: Tensor, *, residual: Tensor | None = None, eps: float) -> Tensor:
        kept = self._added(x, residual).to(exact(x))
        mean = self.arithmetic.sum(kept * kept) / kept.shape[-1]
        return (weight * (kept / (mean + eps).sqrt()[..., None])).to(x.dtype)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, *, residual: Tensor | None = None, eps: float) -> Tensor:
        kept = self._added(x, residual).to(exact(x))
        kept = kept - (self.arithmetic.sum(kept) / kept.shape[-1])[..., None]
        mean = self.arithmetic.sum(kept * kept) / kept.shape[-1]
        return (weight * (kept / (mean + eps).sqrt()[..., None]) + bias).to(x.dtype)

    @staticmethod
    def _added(x: Tensor, residual: Tensor | None) -> Tensor:
        return x if residual is None else residual.add_(x)

    def gated_norm(
        self,
        y: Tensor,
        z: Tensor,
        weight: Tensor,
        *,
        groups: int = 1,
        eps: float,
        norm_first: bool = False,
        gate: Literal["silu", "sigmoid"] = "silu",
    ) -> Tensor:
        wide, factor = y.to(exact(y)), getattr(self.arithmetic, gate)(z.to(exact(y)))
        wide = wide if norm_first else wide * factor
        parts = wide.reshape(*wide.shape[:-1], groups, -1)
        mean = self.arithmetic.sum(parts * parts) / parts.shape[-1]
        normed = weight * (parts / (mean + eps).sqrt()[..., None]).flatten(-2)
        return (normed * factor if norm_first else normed).to(y.dtype)

    def act(self, x: Tensor, name: str) -> Tensor:
        if name == "relu2":
            return x.relu().square()
        return getattr(self.arithmetic, name)(x.to(exact(x))).to(x.dtype)

    def turn(self, positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        return self.arithmetic.turn(positions[..., None].to(frequencies.dtype) * frequencies)

    @staticmethod
    def rotate(q: Tensor, k: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        (cos, sin), f = (x[:, :, None] for x in turn), turn[0].shape[-1]

        def turned(x: Tensor) -> Tensor:
            first, second, rest = torch.split(x.to(exact(x)), [f, f, x.shape[-1] - 2 * f], dim=-1)
            return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1).to(x.dtype)

        return turned(q), turned(k)

    def tree_mask(self, parents: Tensor) -> tuple[Tensor, Tensor]:
        real, own = parents >= -1, torch.eye(parents.shape[1], dtype=torch.bool, device=parents.device)
        none = torch.zeros_like(real)
        ancestors = down_tree(none, parents, lambda before, i: before | (own[i] & real[:, i, None]))[:, 1:]
        return ancestors, ancestors.sum(-1) - 1
