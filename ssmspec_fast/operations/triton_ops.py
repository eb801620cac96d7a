"""All operations by the Triton kernels, compiled on a GPU or in Triton's interpreter; in PyTorch where no kernel is needed.

Bitwise, attention is PyTorch's in one fixed order, as in `torch_ops`: the kernel sums a window apart from the cache, so that
a token's bits would depend on how many came with it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ssmspec_kernels.accept_greedy import accept_greedy
from ssmspec_kernels.accept_sampled import accept_sampled
from ssmspec_kernels.causal_attention import causal_attention
from ssmspec_kernels.commit_tokens import commit_tokens
from ssmspec_kernels.conv_commit import conv_commit
from ssmspec_kernels.conv_packed import conv_packed
from ssmspec_kernels.conv_tree import conv_tree
from ssmspec_kernels.conv_window import conv_window
from ssmspec_kernels.cursors import commit_window
from ssmspec_kernels.gated_norm import gated_norm
from ssmspec_kernels.kv_compact import kv_compact
from ssmspec_kernels.linear_added import WIDE, linear_added
from ssmspec_kernels.linear_rows import linear_rows
from ssmspec_kernels.ngram_drafts import ngram_drafts
from ssmspec_kernels.norm import norm
from ssmspec_kernels.rotary import rotary
from ssmspec_kernels.ssd_gated import ssd_gated
from ssmspec_kernels.ssd_gated_window import ssd_gated_window
from ssmspec_kernels.tree_attention import tree_attention
from ssmspec_kernels.tree_mask import tree_mask

from . import Gate, Keep, OneLaunch, Rows, SSDInputs, SSDParams, Taps, Weighted
from .torch_ops import TorchOperations
from .triton_recurrences import MATRIX, SSD, Delta, Selective, leading, named

FEW = 32
"""Rows up to which `linear_rows` is the faster: for 16, 24, 32 rows a layer of Mamba2-2.7B takes 26.0, 28.7, 28.9 us on an
H200, with cuBLAS 26.9, 28.3, 28.6 and a norm beside, so that a plain step of 32 rows takes 0.96 of that. For
64 rows cuBLAS takes 0.7 of the time."""
ONE_LAUNCH: dict[str, Callable[[Tensor], Tensor]] = {"silu": functional.silu, "gelu": functional.gelu}
"""Activations that PyTorch computes in fp32 and rounds, in one launch."""
LONGEST = 128
"""Tokens of a window that `conv_tree` takes."""
NARROW = 8
"""Rows up to which it is the faster for chains too: it has the bits of `conv_window`, which goes token by token. Windows of 7
and 13 tokens of Mamba2-2.7B took 2.1 and 2.4 us on an H200 for one row, not 3.2 and 4.5; for 16 rows 4.0 and 6.0, not 3.7 and
5.0."""
ROWS = 128
"""Rows that `linear_rows` takes at once; its sums have one order whatever their number."""


class TritonOperations(OneLaunch):
    """`bitwise` as in `TorchOperations`."""

    def __init__(self, bitwise: bool = False) -> None:
        self.bitwise = bitwise
        self.ssd, self.delta, self.selective = SSD(bitwise), Delta(bitwise), Selective(bitwise)
        plain = TorchOperations(bitwise)
        self.layer_norm, self.turn, self.ordered_act = plain.layer_norm, plain.turn, plain.act
        self.append_packed, self.kv_append = plain.append_packed, plain.kv_append
        self.ordered, self.ordered_packed = plain.attention, plain.attention_packed
        self.accept_sampled, self.accept_greedy, self.commit_tokens = accept_sampled, accept_greedy, commit_tokens
        self.commit_window, self.ngram_drafts = commit_window, ngram_drafts
        self.conv_commit, self.kv_compact, self.tree_mask, self.gated_norm = conv_commit, kv_compact, tree_mask, gated_norm

    def rotate(self, q: Tensor, k: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return rotary(q, k, *turn)

    def act(self, x: Tensor, name: str) -> Tensor:
        """In the fast mode one launch, which rounds once."""
        if self.bitwise or name not in ONE_LAUNCH:
            return self.ordered_act(x, name)
        return ONE_LAUNCH[name](x)

    def linear(self, x: Rows, W: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
        if isinstance(x, Weighted):
            return self._linear_weighted(x, W, bias, out)
        rows = x.reshape(-1, x.shape[-1])
        made = x.new_empty((*x.shape[:-1], W.shape[0])) if out is None else out
        if len(rows) > FEW and not self.bitwise:
            y = made.view(-1, W.shape[0])
            if bias is None:
                torch.mm(rows, W.t(), out=y)
            else:
                torch.addmm(bias.to(x.dtype), rows, W.t(), out=y)
            return made
        for part, y in zip(torch.split(rows, ROWS), torch.split(made.view(-1, W.shape[0]), ROWS), strict=True):
            linear_rows(part, W, bias, out=y)
        return made

    def _linear_weighted(self, u: Weighted, W: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
        made = u.x.new_empty((*u.shape[:-1], W.shape[0])) if out is None else out
        for rows, y in zip(parts(u), torch.split(made.view(-1, W.shape[0]), ROWS), strict=True):
            linear_rows(rows.x, W, bias, squares=rows.squares, eps=u.eps, out=y)
        return made

    def linear_normed(
        self, x: Rows, W: Tensor, bias: Tensor | None = None, *, residual: Tensor, weight: Tensor, eps: float
    ) -> Rows:
        u = x if isinstance(x, Weighted) else Weighted(x, None, 0.0)
        if not self.folds(u.x):
            return self.norm(self.linear(x, W, bias), weight, residual=residual, eps=eps)
        kept = torch.split(residual.view(-1, W.shape[0]), ROWS)
        made = [
            linear_added(rows.x, W, bias, residual=r, weight=weight, squares=rows.squares, eps=u.eps)
            for rows, r in zip(parts(u), kept, strict=True)
        ]
        v, sums = made[0] if len(made) == 1 else (torch.cat(pieces) for pieces in zip(*made, strict=True))
        return Weighted(v.view(residual.shape), sums.view(*residual.shape[:-1], -1), eps)

    def folds(self, x: Tensor) -> bool:
        """Whether a norm is left to the projection behind it: for rows of `linear_rows`, in types without overflow."""
        return (self.bitwise or x.numel() <= FEW * x.shape[-1]) and x.dtype in WIDE

    def ssd_gated(self, S: Tensor, inputs: SSDInputs, params: SSDParams, gate: Gate, *, slots: Tensor) -> Weighted | None:
        """Bitwise, a window is scanned by other kernels, and a token is gated as it is there."""
        if self.bitwise or not self.folds(gate.z):
            return None
        v, squares = ssd_gated(S, *leading(inputs, params), **gated(inputs, params, gate), slots=slots)
        return Weighted(v.flatten(2), squares, gate.eps)

    def ssd_gated_window(
        self,
        S: Tensor,
        inputs: SSDInputs,
        params: SSDParams,
        gate: Gate,
        *,
        ancestors: Tensor | None = None,
        slots: Tensor,
    ) -> Weighted | None:
        if self.bitwise or inputs.x.shape[1] < MATRIX or not self.folds(gate.z):
            return None
        given = gated(inputs, params, gate) | {"ancestors": ancestors, "slots": slots}
        v, squares = ssd_gated_window(S, *leading(inputs, params), **given)
        return Weighted(v.flatten(2), squares, gate.eps)

    def logits(self, x: Tensor, W: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out = torch.empty((len(rows), W.shape[0]), dtype=torch.float32, device=x.device)
        for part, y in zip(torch.split(rows, ROWS), torch.split(out, ROWS), strict=True):
            linear_rows(part, W, out=y)
        return out.view(*x.shape[:-1], W.shape[0])

    def norm(self, x: Tensor, weight: Tensor, *, residual: Tensor | None = None, eps: float) -> Tensor:
        if x.dim() <= 3:
            return norm(x, weight, residual=residual, eps=eps)
        return norm(x.reshape(-1, x.shape[-1]), weight, eps=eps).view(x.shape)

    def conv_window(
        self,
        M: Tensor,
        u: Tensor,
        taps: Taps,
        *,
        slots: Tensor,
        live: Tensor | None = None,
        keep: Keep = "final",
        out: Tensor | None = None,
    ) -> Tensor:
        if keep == "none" and live is None and u.shape[0] <= NARROW and 1 < u.shape[1] <= LONGEST:
            return conv_tree(M, u, None, **filters(taps), slots=slots, out=out)
        return conv_window(M, u, **filters(taps), slots=slots, live=live, keep=keep, out=out)

    def conv_packed(
        self, M: Tensor, u: Tensor, taps: Taps, bounds: Tensor, *, slots: Tensor, fresh: Tensor | None = None
    ) -> Tensor:
        return conv_packed(M, u[0], bounds, **filters(taps), slots=slots, fresh=fresh)[None]

    def conv_tree(
        self, M: Tensor, u: Tensor, taps: Taps, parents: Tensor, *, slots: Tensor, out: Tensor | None = None
    ) -> Tensor:
        return conv_tree(M, u, parents, **filters(taps), slots=slots, out=out)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        K: Tensor,
        V: Tensor,
        length: Tensor,
        *,
        ancestors: Tensor | None = None,
        scale: float,
        append: bool = True,
        slots: Tensor,
    ) -> Tensor:
        given: dict[str, Any] = {"ancestors": ancestors, "scale": scale, "append": append, "slots": slots}
        if self.bitwise:
            return self.ordered(q, k, v, K, V, length, **given)
        return tree_attention(q, k, v, K, V, length, **given)

    def attention_packed(
        self, q: Tensor, K: Tensor, V: Tensor, bounds: Tensor, *, length: Tensor, scale: float, slots: Tensor
    ) -> Tensor:
        if self.bitwise:
            return self.ordered_packed(q, K, V, bounds, length=length, scale=scale, slots=slots)
        return causal_attention(q[0], K, V, bounds, length=length, scale=scale, slots=slots)[None]


def gated(inputs: SSDInputs, params: SSDParams, gate: Gate) -> dict[str, Any]:
    """What a launcher that gates takes by name, gate and weight by heads."""
    shape = inputs.x.shape
    return named(inputs, params) | {"z": gate.z.view(shape), "weight": gate.weight.view(shape[2:])}


def parts(u: Weighted) -> list[Weighted]:
    """The rows (.., c), as many at a time as the kernels take."""
    x = torch.split(u.x.reshape(-1, u.x.shape[-1]), ROWS)
    squares = [None] * len(x) if u.squares is None else torch.split(u.squares.view(-1, u.squares.shape[-1]), ROWS)
    return [Weighted(a, b, u.eps) for a, b in zip(x, squares, strict=True)]


def filters(taps: Taps) -> dict[str, Any]:
    """The convolution's parameters, by the launchers' names."""
    return {"weight": taps.weight, "bias": taps.bias, "activation": taps.activation}
