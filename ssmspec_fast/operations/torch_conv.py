"""The causal convolution in PyTorch: windows, packed runs, trees, and the commit of the accepted inputs.

ext = [M | u_0 .. u_{T-1}] of the live inputs, oldest first       (1)
y_r = act(bias + sum_i weight_i ext_{r + 1 + i})                  (2)
M'  = ext[n : n + w], n the inputs that were accepted             (3)
"""

import torch
from torch import Tensor

from . import Keep, Taps
from .arithmetic import Arithmetic, exact
from .slots import down_tree, expand, put, repack, take, unpack
from .torch_recurrences import clear


class Convolution:
    """(1) to (3) in one arithmetic."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic

    def read(self, windows: Tensor, taps: Taps, dtype: torch.dtype) -> Tensor:
        """The outputs (2) of windows (.., c, w)."""
        wide = torch.promote_types(taps.weight.dtype, exact(windows))
        y = self.arithmetic.sum(windows.to(wide) * taps.weight)
        y = y if taps.bias is None else y + taps.bias
        return (self.arithmetic.silu(y) if taps.activation else y).to(dtype)

    def window(
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
        w = M.shape[-1]
        inputs = u if live is None else first(u, live)
        ext = extended(take(M, slots), inputs)  # (1)
        y = self.read(ext.unfold(2, w, 1)[:, :, 1:].transpose(1, 2), taps, u.dtype)  # (2)
        if live is not None:
            rank = (live.long().cumsum(1) - 1).clamp_min(0)
            y = torch.gather(y, 1, rank[..., None].expand_as(y))
            y = torch.where(live[..., None], y, y.new_zeros(()))
        if keep == "final":
            put(M, slots, ext[..., -w:] if live is None else after(ext, live.sum(1), w))  # (3)
        return y if out is None else out.copy_(y)

    def packed(
        self, M: Tensor, u: Tensor, taps: Taps, bounds: Tensor, *, slots: Tensor, fresh: Tensor | None = None
    ) -> Tensor:
        clear(M, slots, fresh)
        rows, live = unpack(u, bounds)
        return repack(self.window(M, rows, taps, slots=slots, live=live), live, u)

    def tree(self, M: Tensor, u: Tensor, taps: Taps, parents: Tensor, *, slots: Tensor, out: Tensor | None = None) -> Tensor:
        """Each node's window is that of its parent, shifted by its own input."""
        held = take(M, slots)
        root, new = held.to(exact(held)), u.to(exact(held))[..., None]
        windows = down_tree(root, parents, lambda before, t: torch.cat([before[..., 1:], new[:, t]], dim=-1))
        y = self.read(windows[:, 1:], taps, u.dtype)
        y = torch.where(expand(parents >= -1, y), y, y.new_zeros(()))
        return y if out is None else out.copy_(y)

    @staticmethod
    def commit(M: Tensor, u: Tensor, *, advanced: Tensor | None = None, path: Tensor | None = None, slots: Tensor) -> None:
        """Commits the accepted inputs (3), in the order of the path."""
        if path is not None:
            u = torch.gather(u, 1, path.clamp_min(0).long()[..., None].expand(-1, -1, u.shape[2]))
            advanced = (path >= 0).sum(1)
        assert advanced is not None
        put(M, slots, after(extended(take(M, slots), u), inside(advanced, slots), M.shape[-1]))


def first(u: Tensor, live: Tensor) -> Tensor:
    """The live inputs of each row, in order, followed by zeros."""
    order = torch.argsort((~live).long(), dim=1, stable=True)
    moved = torch.gather(u, 1, order[..., None].expand_as(u))
    return torch.where(torch.gather(live, 1, order)[..., None], moved, moved.new_zeros(()))


def inside(advanced: Tensor, slots: Tensor) -> Tensor:
    """The number of inputs that enter the windows: 0 for padding, whose number may be that of slot 0."""
    return torch.where(slots >= 0, advanced, 0)


def extended(held: Tensor, u: Tensor) -> Tensor:
    """Windows (b, c, w) followed by inputs (b, t, c), oldest first (1)."""
    return torch.cat([held.to(exact(u)), u.transpose(1, 2).to(exact(u))], dim=2)


def after(ext: Tensor, count: Tensor, w: int) -> Tensor:
    """ext[n : n + w] for each row's n (3)."""
    places = count.long()[:, None] + torch.arange(w, device=ext.device)
    return torch.gather(ext, 2, places[:, None].expand(-1, ext.shape[1], -1))
