"""bf16 and tf32 in NumPy, rounded like the hardware rounds fp32 bits."""

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Bits = NDArray[np.uint16]


def to_bf16(x: F32) -> Bits:
    """The bf16 nearest to each fp32, ties to even, as its 16 bits; NaN becomes the quiet NaN."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    with np.errstate(over="ignore"):  # only the bits of a NaN can wrap, and they are replaced
        rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded.reshape(np.shape(x)))


def from_bf16(bits: Bits) -> F32:
    """The fp32 value of bf16 bits, exactly."""
    return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32).reshape(np.shape(bits))


def to_tf32(x: F32) -> F32:
    """fp32 with a mantissa of 10 bits, rounded to nearest, ties away from zero, as `cvt.rna.tf32.f32` does."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    with np.errstate(over="ignore"):
        rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), rounded.reshape(np.shape(x)), x).astype(np.float32)
