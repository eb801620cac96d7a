"""The rules: what the arithmetic of floating point is, over the integers mod 2^64.

+, -, *, sums, products of matrices     those of the ring; every order of evaluation gives the same                 (1)
casts, rounding, storing                the identity; an integer or a truth value is itself                         (2)
exp(x) = exp2(x) = 5^x                  a homomorphism: 5 has the order 2^62, so exp(x + y) = exp(x) exp(y).
                                        log2(e) and ln(2), which stand between the two, are 1                       (3)
exp(-inf) = 0                           -inf is one element that is only chosen by a mask                           (4)
x / y, 1 / x                            by the inverse of a unit, an odd number; otherwise not judged               (5)
sqrt(x)                                 an odd number that is a function of x, and rsqrt(x) its inverse             (6)
softplus(x), sigmoid(x)                 functions of x, opaque; silu(x) = x sigmoid(x)                              (7)
an integer constant                     itself; any other is an opaque element, the same for the same number in fp32 (8)
min(x, c), max(x, c), c a constant      opaque functions of x, one for each c; but a minimum with infinity, or with a constant
                                        of 60 or more, which guards against overflow, is x, and so is max(x, 0), which is
                                        taken of step sizes, and these are not negative                              (9)
comparisons, other functions            not judged: `NotInRing`                                                    (10)

Two expressions that are equal over the reals by ring identities and the law of exp alone are equal here. Two that are not
differ for random inputs, except with a probability of about their degree / 2^62. So a structural fault (an index, a sign, a
mask, an order) shows by ==, without a bound; a rounding, a format or an overflow does not show at all.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import NotInRing

Elements = NDArray[np.uint64]
SAME = (1.4426950408889634, 0.6931471805599453)
"""log2(e) and ln(2) (3)."""
LEAST_GUARD, MOST_GUARD = 60, 1 << 20
BITS = 64


def mixed(x: Elements | np.uint64, what: str) -> Elements:
    """An opaque function of x, of this name: the finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    key = np.uint64(int.from_bytes(what.encode()[:8].ljust(8, b"."), "little"))
    with np.errstate(over="ignore"):
        x = np.asarray(x, dtype=np.uint64) + key * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


MINUS_INFINITY = np.uint64(mixed(np.uint64(0), "-inf"))
INFINITY = np.uint64(mixed(np.uint64(1), "inf"))
NO_NUMBER = np.uint64(mixed(np.uint64(0), "nan"))


def constant(value: float) -> np.uint64:
    """A number of a program as an element (8)."""
    value = float(value)
    if np.isneginf(value):
        return MINUS_INFINITY
    if not np.isfinite(value):
        return NO_NUMBER if np.isnan(value) else INFINITY
    if value == int(value):
        return np.uint64(int(value) % (1 << BITS))
    if any(abs(value - same) < 1e-6 for same in SAME):
        return np.uint64(1)
    return np.uint64(mixed(np.float32(value).view(np.uint32).astype(np.uint64), "constant"))


def constants(values: Any) -> Elements:
    """An array of numbers as elements."""
    a = np.asarray(values)
    if a.dtype.kind in "biu":
        return a.astype(np.int64).view(np.uint64) if a.dtype != np.uint64 else a
    different, place = np.unique(a, return_inverse=True)
    return np.array([constant(x) for x in different], dtype=np.uint64)[place].reshape(a.shape)


def exp(x: Elements) -> Elements:
    """5^x (3), 0 at -inf (4)."""
    x = np.asarray(x, dtype=np.uint64)
    power, base = np.ones(x.shape, dtype=np.uint64), np.uint64(5)
    with np.errstate(over="ignore"):
        for bit in range(BITS - 2):
            power = np.where((x >> np.uint64(bit)) & np.uint64(1), power * base, power)
            base = base * base
    return np.where(x == MINUS_INFINITY, np.uint64(0), power)


def inverse(x: Elements) -> Elements:
    """1 / x (5), by Newton's iteration. Raises: NotInRing for an even number."""
    x = np.asarray(x, dtype=np.uint64)
    if np.any(x & np.uint64(1) == 0):
        raise NotInRing("it divides by a number that has no inverse in the ring")
    with np.errstate(over="ignore"):
        y: Elements = x * np.uint64(3) ^ np.uint64(2)  # right to 5 bits
        for _ in range(4):
            y = np.asarray(y * (np.uint64(2) - x * y), dtype=np.uint64)
    return y


def sqrt(x: Elements) -> Elements:
    """(6)."""
    return mixed(x, "sqrt") | np.uint64(1)


def softplus(x: Elements) -> Elements:
    """(7)."""
    return mixed(x, "softplus")


def sigmoid(x: Elements) -> Elements:
    """(7)."""
    return mixed(x, "sigmoid")


def minimum(x: Elements, other: Elements) -> Elements:
    """(9). Raises: NotInRing for a minimum of two values."""
    value, limit = _with_constant(x, other)
    if LEAST_GUARD <= limit < MOST_GUARD or limit == INFINITY:
        return value
    return mixed(value ^ mixed(limit, "limit"), "minimum")


def maximum(x: Elements, other: Elements) -> Elements:
    """(9). Raises: NotInRing for a maximum of two values."""
    value, limit = _with_constant(x, other)
    return value if limit == 0 else mixed(value ^ mixed(limit, "limit"), "maximum")


def _with_constant(x: Elements, other: Elements) -> tuple[Elements, Any]:
    """The value and the constant, which is the same everywhere; of two constants the second."""
    x, other = np.broadcast_arrays(x, other)
    for value, limit in ((x, other), (other, x)):
        if limit.size and np.all(limit == limit.flat[0]):
            return value, limit.flat[0]
    raise NotInRing("it takes the larger or the smaller of two values")
