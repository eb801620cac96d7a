"""RMS norms: of the residual stream, of a Mamba-1 projection, and gated, at the end of a recurrent layer.

rms(x) = weight x / sqrt(mean x^2 + eps)            over the last axis, or over each group of it  (1)
gate first:  rms(y act(z))                          Mamba-2, Nemotron-H, Bamba, Zamba2            (2)
norm first:  rms(y) act(z)                          Falcon-H1, Gated DeltaNet, Kimi Linear        (3)

The two orders differ: in (2) the gate enters the mean. The delta rule norms each head separately, so its last axis is the
value channel. Checkpoints that store weight - 1 (Qwen3-Next's norms of the residual stream) must be converted to weight.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..errors import ParameterError, ShapeMismatch
from ..functions import sigmoid, silu
from ..records import Record
from ..shapes import Array, Scale


@dataclass(frozen=True)
class Norm(Record):
    """An RMS norm over the last axis.

    Raises: ParameterError for eps < 0.
    """

    weight: Scale
    eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.eps >= 0:
            raise ParameterError(f"eps of a norm is {self.eps}; it must be >= 0")


@dataclass(frozen=True)
class GatedNorm(Record):
    """An RMS norm and a gate: the mean is over each of `groups` equal parts of the last axis, and the order (`norm_first`).

    Raises: ParameterError for eps < 0, groups that do not divide the channels, or another gate.
    """

    weight: Scale
    eps: float = 1e-6
    groups: int = 1
    norm_first: bool = False
    gate: Literal["silu", "sigmoid"] = "silu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.eps >= 0:
            raise ParameterError(f"eps of a norm is {self.eps}; it must be >= 0")
        if self.groups < 1 or len(self.weight) % self.groups:
            raise ParameterError(f"{self.groups} groups do not divide {len(self.weight)} channels of a norm")
        if self.gate not in ("silu", "sigmoid"):
            raise ParameterError(f"gate of a norm is {self.gate!r}; it must be 'silu' or 'sigmoid'")


def rms(x: Array, norm: Norm) -> Array:
    """weight x / sqrt(mean x^2 + eps) over the last axis (1).

    Raises: ShapeMismatch.
    Source: arXiv:1910.07467, equation 4.
    """
    return _rms(x, norm.weight, norm.eps, 1)


def gated(y: Array, z: Array, norm: GatedNorm) -> Array:
    """The norm and the gate in the layer's order, (2) or (3).

    Raises: ShapeMismatch.
    Source: arXiv:2405.21060, section 7 (gate first); arXiv:2412.06464, figure 1 (norm first); Kimi Linear (sigmoid).
    """
    if y.shape != z.shape:
        raise ShapeMismatch(f"y has shape {y.shape} and its gate z has {z.shape}; they must be equal")
    act = {"silu": silu, "sigmoid": sigmoid}[norm.gate]
    if norm.norm_first:
        return _rms(y, norm.weight, norm.eps, norm.groups) * act(z)  # (3)
    return _rms(y * act(z), norm.weight, norm.eps, norm.groups)  # (2)


def _rms(x: Array, weight: Scale, eps: float, groups: int) -> Array:
    if x.shape[-1] != len(weight):
        raise ShapeMismatch(f"x has {x.shape[-1]} channels, but its norm has {len(weight)}; they must be equal")
    parts = x.reshape(*x.shape[:-1], groups, -1)
    mean = np.mean(parts * parts, axis=-1, keepdims=True)
    return weight * (parts / np.sqrt(mean + eps)).reshape(x.shape)  # (1)
