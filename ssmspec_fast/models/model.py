"""A language model: embedding, blocks, a norm, a head; and its forward pass, for any mixers.

    x      = embedding[token]                                   (1)
    x      = x + sum of mixer(norm(x)) over the branches        (2)
    x      = x + mlp(norm(x)),  of the x before (2) if parallel (3)
    logits = head norm(x)                                       (4)

The last summand waits in `pending` until the next norm: a single product is computed together with the norm.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from ..layers.attention import Attention
from ..layers.linear import Product, scaled
from ..layers.mlp import MLP
from ..layers.norm import Norm
from ..layers.recurrent import Recurrent
from ..operations import Operations, Rows
from .config import ModelConfig

Mixer: TypeAlias = Recurrent | Attention
Run: TypeAlias = Callable[[int, Mixer, Rows], Product]
"""Layer, its mixer, its input -> its output."""


@dataclass(frozen=True)
class Block:
    """The tensors of a block; its scales are the config's."""

    mixers: tuple[Mixer, ...] = ()
    norm: Norm | None = None
    mlp: MLP | None = None
    mlp_norm: Norm | None = None


@dataclass(frozen=True)
class Model:
    config: ModelConfig
    embedding: Tensor
    blocks: tuple[Block, ...]
    norm: Norm
    head: Tensor

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """As `ModelConfig.mixers`: a mixer's index is its `layer`."""
        return tuple(mixer for block in self.blocks for mixer in block.mixers)

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def exact(self) -> torch.dtype:
        """The type of intermediate results inside an operation: fp32, or float64 in a float64 model."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32


class Stream:
    """The residual stream between two norms."""

    def __init__(self, x: Tensor, model: Model, operations: Operations) -> None:
        self.x, self.operations = x, operations
        self.dtype = model.dtype
        self.residual = x.to(model.exact) if model.config.residual_fp32 else x.clone()
        self.pending: list[Product] = []

    def normed(self, norm: Norm, again: bool = False) -> Rows:
        """The norm of the stream with what is pending, for projections; `again` for the same stream as the last norm."""
        if len(self.pending) != 1 or again:
            return self.last(norm, again)
        (pending,), self.pending = self.pending, []
        return pending.normed(norm, self.residual, self.operations)

    def last(self, norm: Norm, again: bool = False) -> Tensor:
        """As `normed`, for any reader."""
        if not self.pending or again:
            return norm(self.residual, self.operations).to(self.dtype)
        pending, self.pending = self.pending, []
        return norm(total([one.taken(self.operations) for one in pending]), self.operations, self.residual)


def through(model: Model, tokens: Tensor, run: Run, operations: Operations) -> Tensor:
    """Tokens (b, t) through all blocks, (1) to (3), and the last norm: the input of the head (b, t, u)."""
    embedded = scaled(model.embedding[tokens], model.config.embedding_multiplier)
    stream = Stream(embedded, model, operations)
    layer = 0
    for block, config in zip(model.blocks, model.config.blocks, strict=True):
        added: list[Product] = []
        if block.norm is not None:
            u = stream.normed(block.norm)
            for mixer, branch in zip(block.mixers, config.branches, strict=True):
                added.append(replace(run(layer, mixer, scaled(u, branch.scale_in)), factor=branch.scale_out))
                layer += 1
        if not config.parallel and added:
            stream.pending, added = added, []
        if block.mlp is not None and block.mlp_norm is not None:
            added.append(block.mlp(stream.normed(block.mlp_norm, again=config.parallel), operations))
        if added:
            stream.pending = added
    return stream.last(model.norm)


def total(parts: list[Tensor]) -> Tensor:
    """The sum, from left to right."""
    found = parts[0]
    for part in parts[1:]:
        found = found + part
    return found


def head(model: Model, x: Tensor, operations: Operations) -> Tensor:
    """The logits (4), in fp32."""
    return scaled(operations.logits(x, model.head), model.config.head_multiplier)
