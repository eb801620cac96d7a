"""Elements in the memory of a kernel: each is a number that bf16, fp32 and fp64 hold exactly, listed in a table.

So an adapter casts, copies and slices tensors as always; only their values are names of elements. Two equal elements have one
name, and 0 is the name of 0. Memory without a name, such as NaN between the slots of a pool, is an element that equals
nothing else.
"""

import numpy as np
from numpy.typing import NDArray

from ..errors import NotInRing
from . import algebra
from .algebra import Elements

FIRST, LAST = 0x0080, 0x7F7F
"""The bits of the positive normal numbers of bf16; the negative ones follow."""
EACH = LAST - FIRST + 1
MOST = 2 * EACH


class Codes:
    """The table of one case."""

    def __init__(self) -> None:
        self.named: dict[int, int] = {0: 0}
        self.elements: NDArray[np.uint64] = np.zeros(1, dtype=np.uint64)

    def encode(self, elements: Elements) -> NDArray[np.uint16]:
        """The names of elements, as bits of bf16. Raises: NotInRing for more elements than there are names."""
        different, place = np.unique(elements, return_inverse=True)
        new = [int(x) for x in different if int(x) not in self.named]
        if new:
            self.named |= {x: len(self.elements) + n for n, x in enumerate(new)}
            self.elements = np.concatenate([self.elements, np.array(new, dtype=np.uint64)])
            if len(self.elements) > MOST:
                raise NotInRing(f"it stores more than {MOST} different elements; give smaller sizes")
        numbers = np.array([self.named[int(x)] for x in different], dtype=np.int64)[place].reshape(np.shape(elements))
        return np.where(numbers == 0, 0, (numbers - 1) % EACH + FIRST + 0x8000 * ((numbers - 1) // EACH)).astype(np.uint16)

    def decode(self, bits: NDArray[np.uint16]) -> Elements:
        """The elements of names."""
        bits = np.asarray(bits, dtype=np.int64)
        low = bits & 0x7FFF
        number = np.where(bits == 0, 0, low - FIRST + 1 + EACH * (bits >> 15))
        known = (bits == 0) | ((low >= FIRST) & (low <= LAST) & (number < len(self.elements)))
        unknown = algebra.mixed(bits.astype(np.uint64), "memory")
        return np.where(known, self.elements[np.where(known, number, 0)], unknown)

    def as_numbers(self, elements: Elements) -> NDArray[np.float64]:
        """Names as numbers, which an adapter takes for values."""
        return (self.encode(elements).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)

    def of_numbers(self, values: NDArray[np.float64]) -> Elements:
        """The elements that numbers name; one without a name is an element that equals nothing else."""
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        found = self.decode((bits >> np.uint32(16)).astype(np.uint16))
        return np.where(bits & np.uint32(0xFFFF) == 0, found, algebra.mixed(bits.astype(np.uint64), "memory"))
