"""All operations by the Triton kernels, compiled on a GPU or in Triton's interpreter; PyTorch where no kernel is needed.

In bitwise mode, attention is PyTorch's in one fixed order, as in `torch_ops`: the kernel sums the window separately from the
cache, so that a token's bits would depend on the number of tokens in its window.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ssmspec_kernels.attention.causal_attention import causal_attention
from ssmspec_kernels.attention.kv_compact import kv_compact
from ssmspec_kernels.attention.rotary import rotary
from ssmspec_kernels.attention.tree_attention import tree_attention
from ssmspec_kernels.attention.tree_mask import tree_mask
from ssmspec_kernels.conv.conv_commit import conv_commit
from ssmspec_kernels.conv.conv_packed import conv_packed
from ssmspec_kernels.conv.conv_tree import conv_tree
from ssmspec_kernels.conv.conv_window import conv_window
from ssmspec_kernels.linear.gated_norm import gated_norm
from ssmspec_kernels.linear.linear_added import linear_added
from ssmspec_kernels.linear.linear_rows import linear_rows
from ssmspec_kernels.linear.norm import norm
from ssmspec_kernels.shared.cursors import commit_window
from ssmspec_kernels.tokens.accept_greedy import accept_greedy
from ssmspec_kernels.tokens.accept_sampled import accept_sampled
from ssmspec_kernels.tokens.commit_tokens import commit_tokens
from ssmspec_kernels.tokens.ngram_drafts import ngram_drafts

from ..recurrences import RECURRENCES
from . import Keep, OneLaunch, Rows, Taps, Weighted
from .torch_ops import TorchOperations
from .triton_rows import FEW, folds

ONE_LAUNCH: dict[str, Callable[[Tensor], Tensor]] = {"silu": functional.silu, "gelu": functional.gelu}
"""Activations that PyTorch computes in fp32 and rounds, in one launch."""
LONGEST = 128
"""Most tokens of a window that `conv_tree` takes."""
NARROW = 8
"""Up to this many rows `conv_tree` is faster for chains too: it has the same bits as `conv_window`, which goes token by
token. Windows of 7 and 13 tokens of Mamba2-2.7B took 2.1 and 2.4 us on an H200 for one row, not 3.2 and 4.5; for 16 rows 4.0
and 6.0, not 3.7 and 5.0."""
ROWS = 128
"""Most rows of one `linear_rows` launch; its sums have the same order for any number of rows."""


def of_channels(convolution: Callable[..., Any]) -> Callable[..., Any]:
    """A convolution of no channels launches nothing: the layer has none in front of its recurrence."""

    @wraps(convolution)
    def launched(self: Any, M: Tensor, u: Tensor, *args: Any, **given: Any) -> Any:
        return convolution(self, M, u, *args, **given) if M.shape[1] else u

    return launched


class TritonOperations(OneLaunch):
    """`bitwise` as in `TorchOperations`."""

    def __init__(self, bitwise: bool = False) -> None:
        self.bitwise = bitwise
        self.recurrences = {name: kind.launched(bitwise) for name, kind in RECURRENCES.items()}
        plain = TorchOperations(bitwise)
        self.layer_norm, self.turn, self.ordered_act = plain.layer_norm, plain.turn, plain.act
        self.append_packed, self.kv_append = plain.append_packed, plain.kv_append
        self.ordered, self.ordered_packed = plain.attention, plain.attention_packed
        self.accept_sampled, self.accept_greedy, self.commit_tokens = accept_sampled, accept_greedy, commit_tokens
        self.commit_window, self.ngram_drafts = commit_window, ngram_drafts
        self.kv_compact, self.tree_mask, self.gated_norm = kv_compact, tree_mask, gated_norm

    def rotate(self, q: Tensor, k: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return rotary(q, k, *turn)

    def act(self, x: Tensor, name: str) -> Tensor:
        """In fast mode one launch, which rounds once."""
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
        if not folds(u.x, self.bitwise):
            return self.norm(self.linear(x, W, bias), weight, residual=residual, eps=eps)
        kept = torch.split(residual.view(-1, W.shape[0]), ROWS)
        made = [
            linear_added(rows.x, W, bias, residual=r, weight=weight, squares=rows.squares, eps=u.eps)
            for rows, r in zip(parts(u), kept, strict=True)
        ]
        v, sums = made[0] if len(made) == 1 else (torch.cat(pieces) for pieces in zip(*made, strict=True))
        return Weighted(v.view(residual.shape), sums.view(*residual.shape[:-1], -1), eps)

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

    @of_channels
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

    @of_channels
    def conv_packed(
        self, M: Tensor, u: Tensor, taps: Taps, bounds: Tensor, *, slots: Tensor, fresh: Tensor | None = None
    ) -> Tensor:
        return conv_packed(M, u[0], bounds, **filters(taps), slots=slots, fresh=fresh)[None]

    @of_channels
    def conv_tree(
        self, M: Tensor, u: Tensor, taps: Taps, parents: Tensor, *, slots: Tensor, out: Tensor | None = None
    ) -> Tensor:
        return conv_tree(M, u, parents, **filters(taps), slots=slots, out=out)

    @of_channels
    def conv_commit(
        self, M: Tensor, u: Tensor, *, advanced: Tensor | None = None, path: Tensor | None = None, slots: Tensor
    ) -> None:
        conv_commit(M, u, advanced=advanced, path=path, slots=slots)

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


def parts(u: Weighted) -> list[Weighted]:
    """The rows (.., c), in pieces that the kernels take."""
    x = torch.split(u.x.reshape(-1, u.x.shape[-1]), ROWS)
    squares = [None] * len(x) if u.squares is None else torch.split(u.squares.view(-1, u.squares.shape[-1]), ROWS)
    return [Weighted(a, b, u.eps) for a, b in zip(x, squares, strict=True)]


def filters(taps: Taps) -> dict[str, Any]:
    """The convolution's parameters, under the launchers' names."""
    return {"weight": taps.weight, "bias": taps.bias, "activation": taps.activation}
