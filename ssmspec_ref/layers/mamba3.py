"""Layers of Mamba-3: no convolution, one input projection, and a norm of the output only where the recurrence does not gate.

z | x | B | C | dt | A | trap | angle = in_proj u                                  (1)
y   = mamba3(x, dt, A, trap, angle, B, C, z)                                       (2)
out = out_proj y,  or out_proj (rms(y) silu(z)) and no z in (2)                    (3)

B and C lie rank by rank, and in each rank group by group. Nothing is convolved in front of (2): the trapezoid and the biases
take the place of the convolution.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .. import mamba3
from ..errors import ParameterError
from ..mamba3 import Mamba3Params, Mamba3Window, buffered, tree, width
from ..model.tiny_layers import CHANNELS, Draw, linear
from ..shapes import Array, Channels, Residual
from .layer import RecurrentLayer, split
from .linear import Linear
from .mixer import Buffered, Mixer, MixerInputs, Recurrence, TreeScan
from .norm import GatedNorm, gated
from .shortconv import NO_CHANNELS


@dataclass(frozen=True)
class Mamba3Mixer(Mixer):
    """Mamba-3 alone; `conv` has no channels."""

    params: Mamba3Params
    channels: int  # p, of one head
    groups: int
    angles: int  # f
    kind: ClassVar[str] = "mamba3"
    recurrence: ClassVar[Recurrence] = mamba3
    tree: ClassVar[TreeScan] = tree
    buffered: ClassVar[Buffered] = buffered

    @property
    def state_shape(self) -> tuple[int, ...]:
        p = self.params
        return p.heads, width(self.channels, p.states, self.angles, p.rank)

    def project(self, c: Channels, gates: Mamba3Window) -> Mamba3Window:
        """All inputs of the recurrence pass the convolution of no channels by."""
        return gates


def mixer_of(params: Mamba3Params, channels: int, groups: int, angles: int) -> Mamba3Mixer:
    """The mixer with these weights."""
    return Mamba3Mixer(NO_CHANNELS, params, channels, groups, angles)


@dataclass(frozen=True)
class Mamba3Layer(RecurrentLayer):
    """Mamba-3: one input projection (1), one output projection, and a norm of each head or none (3).

    Raises: ParameterError for a norm after inputs of several ranks, which are normed before they are added up
    (`is_outproj_norm` with `is_mimo`): this is not in the reference.
    Source: mamba_ssm/modules/mamba3.py of state-spaces/mamba, `forward`; arXiv:2603.15569v1, section 3.4 and figure 2.
    """

    mixer: Mamba3Mixer
    in_proj: Linear
    out_proj: Linear
    norm: GatedNorm | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm is not None and self.mixer.params.rank > 1:
            raise ParameterError(
                "a norm of the output of Mamba-3 with several ranks is applied to each rank; give norm=None, or rank 1"
            )

    def inputs(self, u: Residual) -> tuple[MixerInputs, Array]:
        m, lead = self.mixer, u.shape[:2]
        h, r, n = m.params.B_bias.shape
        inner, packed = h * m.channels, r * m.groups * n
        z, x, B, C, dt, A, trap, angle = split(
            self.in_proj.apply(u), [inner, inner, packed, packed, h, h, h, m.angles]
        )  # (1)
        x, z = (a.reshape(*lead, h, m.channels) for a in (x, z))
        B, C = (a.reshape(*lead, r, m.groups, n) for a in (B, C))
        gates = Mamba3Window(x, dt, A, trap, angle, B, C, z if self.norm is None else None)
        return MixerInputs(np.zeros((*lead, 0)), gates), z.reshape(*lead, inner)

    def output(self, y: Array, gate: Array) -> Residual:
        flat = y.reshape(gate.shape)
        return self.out_proj.apply(flat if self.norm is None else gated(flat, gate, self.norm))  # (3)


def tiny(rng: Draw, rank: int) -> Mamba3Layer:
    """SISO of rank 1: neighbours, a norm of the output, and half of the channels turned; MIMO: halves, all turned."""
    h, p, n, g, siso = 4, 3, 4, 2 if rank == 1 else 1, rank == 1
    angles = n // 4 if siso else n // 2
    up, gate, down = (None if siso else rng.uniform(0.3, 1.2, (h, rank, p)) for _ in range(3))
    norms, biases = rng.uniform(0.5, 1.5, (2, n)), 1 + rng.normal(0, 0.3, (2, h, rank, n))
    params = Mamba3Params(
        norms[0], norms[1], biases[0], biases[1], rng.normal(-1, 1, h), rng.normal(0, 1, h), up, gate, down,
        0.5 if siso else 1e-4, pairs="neighbours" if siso else "halves",
    )  # fmt: skip
    norm = GatedNorm(rng.uniform(0.5, 1.5, h * p), 1e-5, groups=h, norm_first=True) if siso else None
    outputs = 2 * h * p + 2 * rank * g * n + 3 * h + angles
    return Mamba3Layer(mixer_of(params, p, g, angles), linear(rng, outputs, CHANNELS), linear(rng, CHANNELS, h * p), norm)
