"""States that lose bits: codes with scales, rounded to the nearest number or at random, with or without error feedback.

A block B is the states of one output channel that share a scale: the sum of an output runs over them (n in SSD and Mamba-1,
k in the delta rule). All of a channel are one block (`state_scale="row"`), or so many consecutive ones. C is the largest
code of the format: 127, 32767, 448 (e4m3), 57344 (e5m2).

m_B = max |v_i| over the block                                             (1)
s_B = m_B / C, rounded to fp32; 1 where m_B = 0, and without scales         (2)
x_i = v_i / s_B                                                            (3)
q_i = the number of the format nearest to x_i, ties to even                (4)
      or, at random: the next one up if c_i < f_i, else the next one down   (5)
      f_i = (x_i - down_i) / (up_i - down_i), so that the mean of q_i is x_i  (6)
r_i = v_i - s_B q_i in the format of the error feedback, 0 without it       (7)
S_i = s_B q_i + r_i is what is read                                        (8)

c_i is uniform in [0, 1), drawn again for every element in every call. A result beyond C is C (saturation).
A residual in int4 or int8 is kept in steps of s_B / 16 or s_B / 256, clipped to -8 .. 7 or -128 .. 127.

Source: FlashInfer's selective state update (flashinfer-ai/flashinfer#2645: int16 with one fp32 scale for each row of `dim`,
and stochastic rounding); vllm-project/vllm#40012 and #52962 (int8, int16, fp8 with a scale for each head and channel);
vllm-project/vllm#55196 (int8 with a residual in int4). e4m3 and e5m2: OCP 8-bit Floating Point Specification, revision 1.0.
"""

from dataclasses import dataclass

import numpy as np

from ..contract import LARGEST, LARGEST_CODE, SMALLEST_NORMAL, UNIT_ROUNDOFF, NumericContract
from ..errors import ParameterError, ShapeMismatch
from ..shapes import Array

FEEDBACK_BITS = {"int4": 4, "int8": 8}


@dataclass(frozen=True)
class Kept:
    """A state as it is kept, all arrays in its shape: `scales` and `residual` are 1 and 0 where there are none."""

    codes: Array
    scales: Array
    residual: Array

    @property
    def value(self) -> Array:
        """What is read (8)."""
        return self.scales * self.codes + self.residual


def keep(v: Array, contract: NumericContract, axis: int = -1, coins: Array | None = None) -> Kept:
    """A state stored in the contract's format: equations (1) to (7). `axis` is the axis of the blocks.

    `coins` are the c of (5), one for each element.
    Raises: ParameterError where the rounding needs coins and none are given, or the other way round; ShapeMismatch.
    """
    random = contract.state_rounding == "stochastic"
    if random != (coins is not None):
        raise ParameterError(
            f"state_rounding is {contract.state_rounding!r}; coins belong to 'stochastic', one for each element"
        )
    if coins is not None and coins.shape != v.shape:
        raise ShapeMismatch(f"coins have shape {coins.shape}; give one for each element of the state {v.shape}")
    s = scales(v, contract, axis)  # (2)
    x = within(v / s, contract.state)  # (3)
    if coins is None:
        q = nearest(x, contract.state)  # (4)
    else:
        below, above = neighbours(x, contract.state)
        f = np.divide(x - below, above - below, out=np.zeros(x.shape), where=above > below)  # (6)
        q = np.where(coins < f, above, below)  # (5)
    return Kept(q, s, _residual(v - s * q, s, contract))  # (7)


def scales(v: Array, contract: NumericContract, axis: int = -1) -> Array:
    """The scale of every element: (1) and (2)."""
    if contract.state_scale is None:
        return np.ones(v.shape)
    m = largest(np.abs(v), contract, axis)  # (1)
    s = (m / LARGEST_CODE[contract.state]).astype(np.float32).astype(np.float64)
    return np.where(s > 0, s, 1.0)


def largest(size: Array, contract: NumericContract, axis: int = -1) -> Array:
    """The largest of each block, at each of its elements; the last block may be shorter."""
    length = size.shape[axis]
    block = length if contract.state_scale == "row" or contract.state_scale is None else contract.state_scale
    most = np.maximum.reduceat(size, np.arange(0, length, block), axis=axis)
    return np.take(most, np.arange(length) // block, axis=axis)


def step(x: Array, form: str) -> Array:
    """The distance between two neighbouring numbers of a format at x: 1 for codes in integers."""
    if form.startswith("int"):
        return np.ones(x.shape)
    _, exponent = np.frexp(np.maximum(np.abs(x), SMALLEST_NORMAL[form]))
    return 2 * UNIT_ROUNDOFF[form] * 2.0 ** (exponent - 1)


def nearest(x: Array, form: str) -> Array:
    """The nearest number of a format, ties to even (4)."""
    d = step(x, form)
    return within(np.rint(x / d) * d, form)


def neighbours(x: Array, form: str) -> tuple[Array, Array]:
    """The next numbers of a format at or below x, and at or above it."""
    d = step(x, form)
    return within(np.floor(x / d) * d, form), within(np.ceil(x / d) * d, form)


def within(x: Array, form: str) -> Array:
    """Saturated at the largest number of an 8-bit format or of integer codes; other formats are left as they are."""
    return np.clip(x, -LARGEST_CODE[form], LARGEST_CODE[form]) if form in LARGEST_CODE else x


def axis_of(axes: str) -> int:
    """The axis of the blocks in a state with these axes: n, or k of the delta rule; counted from the end."""
    names = axes.split()
    return names.index("n" if "n" in names else "k") - len(names)


def _residual(d: Array, s: Array, contract: NumericContract) -> Array:
    form = contract.error_feedback
    if form is None:
        return np.zeros(d.shape)
    if form in FEEDBACK_BITS:
        parts = 2.0 ** FEEDBACK_BITS[form]
        return np.clip(np.rint(d * parts / s), -parts / 2, parts / 2 - 1) * s / parts
    small = SMALLEST_NORMAL[form]
    grid = 2 * UNIT_ROUNDOFF[form] * 2.0 ** (np.frexp(np.maximum(np.abs(d), small))[1] - 1)
    return np.clip(np.rint(d / grid) * grid, -LARGEST[form], LARGEST[form])
