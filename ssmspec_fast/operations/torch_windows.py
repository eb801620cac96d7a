"""SSD over several tokens at once, in PyTorch: outputs and states from the initial state, in a few matrix products.

    L_ts = prod_{s < r <= t} a_r  for s <= t, otherwise 0;  l_t = L_t,-1          (1)
    y_t  = l_t S_-1 C_t + sum_s L_ts (C_t B_s) dt_s x_s + D x_t                   (2)
    S_t  = l_t S_-1 + sum_s L_ts dt_s x_s B_s^T                                   (3)

The rounding depends on the length of the window, so this is not bitwise. A few launches replace those of every token, and
launches dominate the cost of a small model on a CPU.
Source: arXiv:2405.21060, section 6 (the matrix form of a block).
"""

import torch
from torch import Tensor

from . import SSDInputs, SSDParams
from .arithmetic import exact
from .slots import expand, put, take
from .torch_recurrences import SSD, SSDTokens

TOKENS = 64
"""Tokens at once: the matrix (1) is square."""


class SSDWindows(SSD):
    """As `SSD`, with matrix products for runs of more than one token along a chain."""

    def scan(
        self,
        S: Tensor,
        inputs: SSDInputs,
        params: SSDParams,
        *,
        slots: Tensor,
        live: Tensor | None = None,
        write_state: bool = True,
    ) -> Tensor:
        if inputs.x.shape[1] == 1:
            return super().scan(S, inputs, params, slots=slots, live=live, write_state=write_state)
        state, outputs = take(S, slots).to(exact(inputs.x)), []
        for piece in self.pieces(inputs, params, live):
            L, whole = decays(piece)
            outputs.append(read(state, piece, L, whole))
            x, B = piece.weighted.transpose(1, 2), piece.B.transpose(1, 2)
            state = whole[:, :, -1:] * state + (L[:, :, -1, :, None] * x).mT @ B  # (3), the last one
        if write_state:
            put(S, slots, state)
        return self.finished(outputs, inputs, params, live)

    def snapshots(
        self,
        S: Tensor,
        inputs: SSDInputs,
        params: SSDParams,
        places: Tensor,
        *,
        slots: Tensor,
        live: Tensor | None = None,
    ) -> Tensor:
        state, outputs = take(S, slots).to(exact(inputs.x)), []
        to = torch.split(torch.where((slots >= 0)[:, None], places, -1), TOKENS, dim=1)
        for piece, at in zip(self.pieces(inputs, params, live), to, strict=True):
            L, whole = decays(piece)
            outputs.append(read(state, piece, L, whole))
            U = (piece.weighted[..., None] * piece.B[:, :, :, None]).flatten(3).transpose(1, 2)
            states = (whole * state.flatten(2)[:, :, None] + L @ U).transpose(1, 2)  # (3)
            states = states.reshape(*states.shape[:3], *S.shape[2:])
            put(S, at.flatten(), states.flatten(0, 1))
            state = states[:, -1]
        return self.finished(outputs, inputs, params, live)

    def pieces(self, inputs: SSDInputs, params: SSDParams, live: Tensor | None) -> list[SSDTokens]:
        """The inputs of the steps, for a limited number of tokens at once; a token that is not live changes nothing."""
        tokens = self.prepare(inputs, params)
        if live is not None:
            a = torch.where(live[..., None], tokens.a, 1.0)
            tokens = tokens._replace(a=a, weighted=torch.where(expand(live, tokens.weighted), tokens.weighted, 0.0))
        return [SSDTokens(*(x[:, n : n + TOKENS] for x in tokens)) for n in range(0, inputs.x.shape[1], TOKENS)]

    def finished(self, outputs: list[Tensor], inputs: SSDInputs, params: SSDParams, live: Tensor | None) -> Tensor:
        y = self.finish(torch.cat(outputs, dim=1), inputs, params)
        return y if live is None else torch.where(expand(live, y), y, 0.0)


def decays(tokens: SSDTokens) -> tuple[Tensor, Tensor]:
    """(1): L (b, h, t, s) and l (b, h, t, 1)."""
    a = tokens.a.transpose(1, 2)
    later = torch.ones((a.shape[2], a.shape[2]), dtype=torch.bool, device=a.device).tril(-1)
    return torch.where(later, a[..., None], 1.0).cumprod(2).tril(), a.cumprod(2)[..., None]


def read(S: Tensor, tokens: SSDTokens, L: Tensor, whole: Tensor) -> Tensor:
    """(2), without D."""
    x, B, C = (part.transpose(1, 2) for part in (tokens.weighted, tokens.B, tokens.C))
    return (whole * (C @ S.mT) + (L * (C @ B.mT)) @ x).transpose(1, 2)
