"""The format in which a state was really kept, read off its values.

A state in fp32 holds numbers of 24 bits; one that passed through a narrower format on its way holds numbers of 8 (bf16) or 11
(fp16). An error bound may allow that, because another part of the contract is wide. The values tell it all the same:

An element counts as evidence where the exact value lies at least `CLEAR` of a step of the narrow format away from every
narrow number. An implementation that keeps fp32 gives a narrow number there only by chance. If its error is below 2^-4
steps, which is 2^-12 of a bf16 number and 2^-15 of an fp16 number, it cannot at all; if it is larger, the bits below are
those of a rounding error, and all of them are 0 in one of 2^13 elements or fewer. `ENOUGH` elements of evidence that are all
narrow numbers, without a single exception, do not happen by chance: inputs that are exact, zeros, powers of two and
small sums of them are narrow numbers in exact arithmetic too, and are no evidence.

A state that is declared as codes with scales must hold such numbers: in every block the largest value is the largest code (at
random, or the code below it), and all others are codes times the scale that follows from it, up to the rounding of this
product in fp32. With a residual in int4 or int8 its steps are the codes; other residuals leave every value possible.
"""

import numpy as np

from ssmspec_ref import state_format
from ssmspec_ref.contract import LARGEST, LARGEST_CODE, SMALLEST_NORMAL, UNIT_ROUNDOFF, NumericContract, Storage
from ssmspec_ref.shapes import Array

from .draw import stored

CLEAR = 2.0**-4
ENOUGH = 16
NARROW: tuple[Storage, ...] = ("bf16", "fp16")


def narrower(value: Array, came: Array) -> Storage | None:
    """The narrower format than fp32 that every element of `came` fits exactly, though the exact values `value` do not.

    Shapes: both alike. None where an element is no number of the format, or where fewer than `ENOUGH` elements are evidence.
    """
    for storage in NARROW:
        normal = (np.abs(value) >= SMALLEST_NORMAL[storage]) & (np.abs(value) <= LARGEST[storage] / 2) & (came != 0)
        if normal.sum() < ENOUGH or not _fits(came, storage):
            continue
        exact = value[normal]
        step = 2 * UNIT_ROUNDOFF[storage] * 2.0 ** np.floor(np.log2(np.abs(exact)))
        if np.sum(np.abs(exact - stored(exact, storage)) >= CLEAR * step) >= ENOUGH:
            return storage
    return None


def coded(came: Array, axes: str, contract: NumericContract) -> bool:
    """Whether a state with these axes holds codes of the contract's format times scales of its blocks."""
    parts = 2.0 ** state_format.FEEDBACK_BITS.get(contract.error_feedback or "", 0)
    if contract.error_feedback and parts == 1:
        return True
    axis, top = state_format.axis_of(axes), np.full(1, LARGEST_CODE[contract.state])
    below, _ = state_format.neighbours(top * (1 - 2.0**-20), contract.state)
    size = state_format.largest(np.abs(came), contract, axis)
    fits = np.zeros(came.shape, dtype=bool)
    for code in (top, below) if contract.state_rounding == "stochastic" else (top,):
        x = np.divide(came * code, size, out=np.zeros(came.shape), where=size > 0)
        grid = state_format.nearest(x * parts, contract.state) if parts == 1 else np.rint(x * parts)
        near = np.abs(x * parts - grid) <= np.maximum(4 * UNIT_ROUNDOFF["fp32"] * np.abs(x) * parts, 2.0**-20)
        fits |= state_format.largest((~near).astype(float), contract, axis) == 0
    return bool(fits.all())


def _fits(came: Array, storage: Storage) -> bool:
    """Whether every element is a number of the format."""
    with np.errstate(over="ignore"):
        return bool(np.array_equal(stored(came, storage), came.astype(np.float64)))
