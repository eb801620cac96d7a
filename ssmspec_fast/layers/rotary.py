"""The frequencies of the rotary embedding, scaled as a checkpoint's config says, and the positions that are rotated.

    f_i = theta^(-2 i / channels)                                                    (1)
    linear:   f_i / factor                                                           (2)
    llama3:   f_i for wavelengths below original / high, f_i / factor above
              original / low, and between them a mix, weighted by original / wavelength           (3)

Source: arXiv:2104.09864, equation 15; the scalings are those of transformers' `rope_parameters`.
"""

import math

import torch
from torch import Tensor

from ..models.config import Rotary
from ..operations import Operations


class Positions:
    """The positions (b, t) of a feed; their angles are computed once for all layers with the same rotary embedding."""

    def __init__(self, at: Tensor) -> None:
        self.at = at
        self.turns: dict[Rotary | int, tuple[Tensor, Tensor]] = {}

    def turn(self, rotary: Rotary | None, frequencies: Tensor, operations: Operations) -> tuple[Tensor, Tensor]:
        """Cosine and sine (b, t, f), of the frequencies that a layer computed from `rotary` (None: the layer's own)."""
        key = id(frequencies) if rotary is None else rotary
        if key not in self.turns:
            self.turns[key] = operations.turn(self.at, frequencies)
        return self.turns[key]


def frequencies(rotary: Rotary, dtype: torch.dtype) -> Tensor:
    """One for each pair of channels. Units: radians per token."""
    f = rotary.theta ** (-torch.arange(0, rotary.channels, 2, dtype=torch.float64) / max(rotary.channels, 1))  # (1)
    if rotary.scaling == "linear":
        f = f / rotary.factors[0]  # (2)
    if rotary.scaling == "llama3":
        factor, low, high, original = rotary.factors
        turns = original * f / (2 * math.pi)
        part = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        f = (1 - part) * f / factor + part * f  # (3)
    return f.to(dtype)
