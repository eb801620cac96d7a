"""Arithmetic on pairs: a value, and a bound on how far the computed value may be from it.

In a contract with unit roundoff u every operation satisfies fl(a op b) = (a op b)(1 + d), |d| <= u, plus at most `tiny` if
the result falls below the normal range. With |a^ - a| <= e_a and |b^ - b| <= e_b for the values computed so far,

    |fl(a^ + b^) - (a + b)| <= e + u (|a + b| + e)        e = e_a + e_b                            (1)
    |fl(a^ b^) - a b|       <= e + u (|a b| + e) + tiny   e = |a| e_b + e_a |b| + e_a e_b          (2)
    |fl(a^ / b^) - a / b|   <= e + r (|a/b| + e) + tiny   e = (e_a + |a/b| e_b) / (|b| - e_b)      (3)

r is the relative error of a library function; below the normal range its ulps are steps of the grid. A fused multiply-add
rounds once, while (2) and (1) count two roundings. A sum of products in which every term passes through at most K roundings,
in any order and association, satisfies

    |fl(sum) - sum| <= e + g sum |terms|,   g = K u / (1 - K u)                                    (4)

and if operands are rounded to another format before a matrix product, that error is added. The bound thus covers every order
of summation. Adding an exact 0 and multiplying by an exact 0 or +-1 are exact, and (4) does not count terms that are exactly
0.

Values and errors are float64. The errors are sums of non-negative terms, so computing them changes them by a relative 2^-53
per operation, which is negligible beside the bound.

Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, sections 2.2, 2.8, 3.1 and 3.3 (running error
analysis); Blanchard, Higham, Lopez, Mary, Pranesh, SIAM J. Sci. Comput. 42 (2020) (matrix products of rounded operands).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy import einsum

from ..contract import LARGEST, SMALLEST_NORMAL, UNIT_ROUNDOFF, NumericContract, Storage
from ..errors import ParameterError
from ..shapes import Array


@dataclass(frozen=True)
class Approx:
    """A value in exact arithmetic, and a bound on the error of the value that an implementation of this contract computes."""

    value: Array
    error: Array
    contract: NumericContract

    __array_ufunc__ = None  # so that array * Approx comes here

    @property
    def size(self) -> Array:
        """The largest magnitude that the computed value can have."""
        return np.abs(self.value) + self.error

    def __add__(self, other: "Operand") -> "Approx":
        """Equation (1) of the module."""
        other = self._lift(other)
        exact = _exactly(self, 0) | _exactly(other, 0)
        below = tiny(self.contract) if self.contract.ftz else 0.0  # else a sum below the normal range is exact
        return _rounded(self.value + other.value, self.error + other.error, self.contract, exact, below)

    def __sub__(self, other: "Operand") -> "Approx":
        return self + (-self._lift(other))

    def __rsub__(self, other: "Operand") -> "Approx":
        return self._lift(other) + (-self)

    def __neg__(self) -> "Approx":
        return replace(self, value=-self.value)

    def __mul__(self, other: "Operand") -> "Approx":
        """Equation (2) of the module."""
        other = self._lift(other)
        carried = np.abs(self.value) * other.error + self.error * other.size
        exact = np.logical_or.reduce(np.broadcast_arrays(*(_exactly(x, c) for x in (self, other) for c in (0, 1, -1))))
        return _rounded(self.value * other.value, carried, self.contract, exact, tiny(self.contract))

    def __truediv__(self, other: "Operand") -> "Approx":
        """Equation (3) of the module; inf if the divisor may be 0."""
        other = self._lift(other)
        quotient, room = self.value / other.value, np.abs(other.value) - other.error
        spread = self.error + np.abs(quotient) * other.error
        carried = np.divide(
            spread, room, out=np.full(quotient.shape, np.inf), where=np.broadcast_to(room > 0, quotient.shape)
        )
        return charged(quotient, carried, relative_error(self.contract), self.contract)

    __radd__, __rmul__ = __add__, __mul__

    def __getitem__(self, index: Any) -> "Approx":
        return self.map(lambda a: a[index])

    def map(self, structural: Callable[[Array], Array]) -> "Approx":
        """Apply `structural` to values and errors: reshape, repeat, transpose, slice. It must not do arithmetic."""
        return replace(self, value=structural(self.value), error=structural(self.error))

    def where(self, keep: Array) -> "Approx":
        """An exact 0 where `keep` is false."""
        return self.map(lambda a: np.where(keep, a, 0.0))

    def store(self, form: Storage) -> "Approx":
        """Round to a storage format: adds u_form (|v| + e), unless the format represents every computed value.

        The error is inf if the value may exceed the format's range.
        """
        computed = self.contract.accumulate
        if UNIT_ROUNDOFF[form] <= UNIT_ROUNDOFF[computed] and LARGEST[form] >= LARGEST[computed]:
            return self
        grid = UNIT_ROUNDOFF[form] * SMALLEST_NORMAL[form]
        error = self.error + np.where(_exactly(self, 0), 0.0, UNIT_ROUNDOFF[form] * self.size + grid)
        return replace(self, error=np.where(np.abs(self.value) + error > LARGEST[form], np.inf, error))

    def _lift(self, other: "Operand") -> "Approx":
        return other if isinstance(other, Approx) else constant(other, self.contract)


Operand: TypeAlias = Approx | Array | float


def exact(value: Array, contract: NumericContract, error: Array | None = None) -> Approx:
    """An input: exact as stored, or with a known bound `error`.

    Raises: ParameterError for an error that is negative or NaN.
    """
    if error is None:
        return Approx(value, np.zeros(value.shape), contract)
    if error.shape != value.shape or not np.all(error >= 0):
        raise ParameterError(
            "the error of an input must have its shape and be at least 0 everywhere; give |computed - exact|"
        )
    return Approx(value, error, contract)


def constant(value: Array | float, contract: NumericContract) -> Approx:
    """An array, taken as exact; or a Python number, a literal in the code, rounded to the contract's arithmetic."""
    if isinstance(value, np.ndarray):
        return exact(value, contract)
    number = np.array(float(value))
    held = contract.accumulate == "fp64" or float(np.frexp(number)[0] * 2**8).is_integer()  # 8 bits fit every format
    return Approx(number, np.where(held, 0.0, unit(contract) * np.abs(number)), contract)


def sum_of_products(*terms: tuple[str, "Approx"] | tuple[Any, ...], matmuls: int = 0) -> Approx:
    """A sum of terms, each `(subscripts, operand, operand ..)` as for einsum, in any order and association (4).

    Every term passes through at most K = (factors of a term - 1) + (non-zero terms of the sum - 1) roundings. The operands of
    `matmuls` consecutive matrix products are rounded to the contract's `dot` format before each; tf32x3 adds three products
    for each term. Overflow of an operand in fp16 is not included.

    Raises: ParameterError if K u >= 1, where no bound exists.
    """
    contract = terms[0][1].contract
    value, carried, size, count = (np.zeros(()) for _ in range(4))
    for subscripts, *operands in terms:
        values, sizes = [x.value for x in operands], [x.size for x in operands]
        value = value + _einsum(subscripts, *values)
        size = size + _einsum(subscripts, *sizes)
        count = count + _einsum(subscripts, *[(s > 0).astype(float) for s in sizes])
        for i, x in enumerate(operands):
            if x.error.any():
                carried = carried + _einsum(subscripts, *sizes[:i], x.error, *(np.abs(v) for v in values[i + 1 :]))
    products = max(len(operands) for _, *operands in terms) - 1
    passes = 3 if matmuls and contract.dot == "tf32x3" else 1
    g = gamma(np.where(count > 0, products + passes * count - 1, 0.0), contract, matmuls > 0)
    if matmuls:
        g = np.where(count > 0, g + np.expm1(2 * matmuls * np.log1p(operand_roundoff(contract))) * (1 + g), 0.0)
    reach = max(float(np.prod([max(1.0, x.size.max(initial=0.0)) for x in operands])) for _, *operands in terms)
    below = tiny(contract) * (products + contract.ftz) + 2 * matmuls * _operand_grid(contract)
    return Approx(value, carried + g * size + below * count * reach, contract)


def absolute(*terms: tuple[Any, ...]) -> Array:
    """sum |terms| of a sum of products, with every operand at its largest computed magnitude."""
    return np.sum([_einsum(subscripts, *[x.size for x in operands]) for subscripts, *operands in terms], axis=0)


def gamma(roundings: Array, contract: NumericContract, matmul: bool = False) -> Array:
    """K u / (1 - K u); u is doubled inside a matrix product if the hardware truncates.

    Raises: ParameterError if K u >= 1.
    Source: Higham, lemma 3.1; for truncation Fasi, Higham, Mikaitis, Pranesh, PeerJ CS 7:e330 (2021).
    """
    ku = roundings * unit(contract) * (2 if matmul and contract.truncates else 1)
    if not np.all(ku < 1):
        raise ParameterError(
            f"after {np.max(roundings):.0f} roundings in {contract.accumulate} no digit is correct, so there is no bound; "
            "accumulate in a wider format"
        )
    return ku / (1 - ku)


def unit(contract: NumericContract) -> float:
    """u of the contract's arithmetic."""
    return UNIT_ROUNDOFF[contract.accumulate]


def tiny(contract: NumericContract) -> float:
    """The largest absolute error of a result below the normal range: half a grid step, or a whole step if it is flushed."""
    smallest = SMALLEST_NORMAL[contract.accumulate]
    return smallest if contract.ftz else max(unit(contract) * smallest, 2.0**-1074)


def relative_error(contract: NumericContract) -> float:
    """The relative error of a library function: function_ulp ulp of at most 2 u each."""
    return 2 * contract.function_ulp * unit(contract)


def operand_roundoff(contract: NumericContract) -> float:
    """The relative error of one operand of a matrix product that is rounded to the contract's `dot` format.

    tf32x3 writes an operand as two tf32 numbers, with a remainder of 2^-22, and drops the product of the two small halves,
    2^-22 of the product: 1.5 2^-22 for each operand. If the hardware truncates, u is twice as large, and u^2 four times.
    """
    if contract.dot == "ieee":
        return 0.0
    u = UNIT_ROUNDOFF[contract.dot.removesuffix("x3")] * (2 if contract.truncates else 1)
    return 1.5 * u**2 if contract.dot == "tf32x3" else u


def _operand_grid(contract: NumericContract) -> float:
    """The absolute error of rounding an operand of a matrix product below the format's normal range."""
    form = {"ieee": None, "fp16": "fp16"}.get(contract.dot, "bf16")
    grid = 0.0 if form is None else UNIT_ROUNDOFF[form] * (2 if contract.truncates else 1)
    return 0.0 if form is None else SMALLEST_NORMAL[form] * (1.0 if contract.ftz else grid)


def charged(value: Array, carried: Array, relative: float, contract: NumericContract) -> Approx:
    """A library function's result: the error of its argument plus its own error. Its ulp is never below a grid step."""
    below = max(tiny(contract), relative * SMALLEST_NORMAL[contract.accumulate])
    return Approx(value, carried + relative * (np.abs(value) + carried) + below, contract)


def _rounded(value: Array, carried: Array, contract: NumericContract, exact: Array, below: float) -> Approx:
    rounding = unit(contract) * (np.abs(value) + carried) + below
    return Approx(value, carried + np.where(exact, 0.0, rounding), contract)


def _exactly(x: Approx, number: float) -> Array:
    return (x.value == number) & (x.error == 0)


def _einsum(subscripts: str, *operands: Array) -> Array:
    return einsum(subscripts, *operands, optimize="greedy" if len(operands) > 2 else False)
