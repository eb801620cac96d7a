"""Rotary position embedding: pairs of channels of a query or key are rotated by an angle proportional to the position.

f_i = theta^(-2 i / channels)                                  (1)
(x_i, x_{i+f}) rotated by the angle position f_i, i < f        (2)

Channel i is paired with channel i + f, f the number of frequencies; channels from 2 f on are unchanged (partial rotary).
Scaled variants (linear, YaRN, Llama 3) differ only in the frequencies.
"""

import numpy as np
from numpy import arange, concatenate, cos, sin

from ..checks import checked
from ..errors import ParameterError
from ..shapes import KV, Frequencies, Positions


def frequencies(channels: int, theta: float = 10000.0) -> Frequencies:
    """The frequencies (1) for `channels` rotated channels.

    Units: radians per token.
    Raises: ParameterError for an odd or negative number of channels, or a theta that is not positive.
    Source: arXiv:2104.09864, equation 15.
    """
    if channels < 0 or channels % 2 or not theta > 0:
        raise ParameterError(f"channels and theta are {channels} and {theta}; give an even number >= 0 and theta > 0")
    return theta ** (-arange(0, channels, 2) / max(channels, 1))  # (1)


@checked
def rotate(x: KV, positions: Positions, frequencies: Frequencies) -> KV:
    """Rotate every head of x, queries or keys, by the position of its token (2).

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError for more frequencies than pairs of channels.
    Source: arXiv:2104.09864, section 3.4.2; the pairing (i, i + f) is that of GPT-NeoX and Llama checkpoints.
    """
    f, channels = len(frequencies), x.shape[3]
    if 2 * f > channels:
        raise ParameterError(
            f"{f} frequencies rotate {2 * f} channels, but a head has {channels}; give at most {channels // 2}"
        )
    angle = (positions[..., None] * frequencies)[:, :, None, :]
    first, second, rest = np.split(x, [f, 2 * f], axis=3)
    turned = [first * cos(angle) - second * sin(angle), second * cos(angle) + first * sin(angle)]  # (2)
    return concatenate([*turned, rest], axis=3)
