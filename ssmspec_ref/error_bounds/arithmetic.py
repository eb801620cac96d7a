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
0. A pair remembers the sum that it is (`Sum`), so that (4) replaces (1) and (2) where an order of evaluation is not known.

The functions of the reference take pairs in place of arrays (`pairs` has the rules of NumPy's functions). What is not
known is refused: a pair is never converted to an array or a number, nor written into one.

Values and errors are float64. The errors are sums of non-negative terms, so computing them changes them by a relative 2^-53
per operation, which is negligible beside the bound.

Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, sections 2.2, 2.8, 3.1 and 3.3 (running error
analysis); Blanchard, Higham, Lopez, Mary, Pranesh, SIAM J. Sci. Comput. 42 (2020) (matrix products of rounded operands).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy import einsum

from ..contract import LARGEST, SMALLEST_NORMAL, UNIT_ROUNDOFF, NumericContract, Storage
from ..errors import ParameterError, Unsupported
from ..functions import Numbers
from ..shapes import Array

RULES: dict[str, Callable[..., Any]] = {}
"""What functions of NumPy and of the reference are on pairs, by name."""


@dataclass(frozen=True, eq=False)
class Approx(Numbers):
    """A value in exact arithmetic, and a bound on the error of the value that an implementation of this contract computes."""

    value: Array
    error: Array
    contract: NumericContract
    made: Callable[[], "Sum"] | None = field(default=None, init=False, repr=False)  # so that `replace` forgets it

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def named(self, name: str, *rest: Any, **more: Any) -> Any:
        """The rule for a function of this name. Raises: Unsupported if there is none."""
        if name not in RULES:
            raise Unsupported(f"there is no rule for the error of {name}; give it one in ssmspec_ref/error_bounds/pairs")
        return RULES[name](self, *rest, **more)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        if method != "__call__" or more:
            raise Unsupported(f"{ufunc.__name__} ({', '.join([method, *more])}) of pairs is not known; write it without")
        return self._lift(inputs[0]).named(ufunc.__name__, *inputs[1:])

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        if function.__name__ not in RULES:
            self.named(function.__name__)
        return RULES[function.__name__](*args, **kwargs)

    def _refused(self, *_: Any, **__: Any) -> NoReturn:
        """Raises: Unsupported."""
        raise Unsupported(
            "a pair of a value and an error is no number and no array, and loses its error there; compute with pairs only"
        )

    __array__ = __bool__ = __float__ = __int__ = __eq__ = __ne__ = _refused
    __lt__ = __le__ = __gt__ = __ge__ = __setitem__ = _refused

    @property
    def terms(self) -> "Sum":
        """The sum that this is, before its roundings."""
        return single(self) if self.made is None else self.made()

    def as_made(self, made: Callable[[], "Sum"]) -> "Approx":
        """The same, with the sum that it is."""
        object.__setattr__(self, "made", made)
        return self

    @property
    def size(self) -> Array:
        """The largest magnitude that the computed value can have."""
        return np.abs(self.value) + self.error

    def __add__(self, other: "Operand") -> "Approx":
        """Equation (1) of the module."""
        other = self._lift(other)
        exact = _exactly(self, 0) | _exactly(other, 0)
        below = tiny(self.contract) if self.contract.ftz else 0.0  # else a sum below the normal range is exact
        found = _rounded(self.value + other.value, self.error + other.error, self.contract, exact, below)
        return found.as_made(lambda: self.terms + other.terms)

    def __sub__(self, other: "Operand") -> "Approx":
        return self + (-self._lift(other))

    def __rsub__(self, other: "Operand") -> "Approx":  # type: ignore[misc]  # an array leaves it to a pair
        return self._lift(other) + (-self)

    def __neg__(self) -> "Approx":
        return replace(self, value=-self.value).as_made(lambda: -self.terms)

    def __mul__(self, other: "Operand") -> "Approx":
        """Equation (2) of the module."""
        other = self._lift(other)
        carried = np.abs(self.value) * other.error + self.error * other.size
        exact = _passes(self) | _passes(other)
        found = _rounded(self.value * other.value, carried, self.contract, exact, tiny(self.contract))
        return found.as_made(lambda: self.terms * other.terms)

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
        return Approx(structural(self.value), structural(self.error), self.contract)

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


def sum_of_products(*terms: tuple[str, "Approx"] | tuple[Any, ...], matmuls: int = 0, scaled: int = 0) -> Approx:
    """A sum of terms, each `(subscripts, operand, operand ..)` as for einsum, in any order and association (4).

    Every term passes through at most K = (factors of a term - 1) + (non-zero terms of the sum - 1) roundings. The operands of
    `matmuls` consecutive matrix products are rounded to the contract's `dot` format before each; tf32x3 adds three products
    for each term. Overflow of an operand in fp16 is not included. `scaled` counts multiplications of a term that errors of
    its operands include already: they are counted below the normal range only.

    Raises: ParameterError if K u >= 1, where no bound exists.
    """
    return reduce(add, (product_of(*term) for term in terms)).rounded(matmuls, scaled)


@dataclass(frozen=True)
class Sum:
    """A sum of products before it is rounded: its value, the error that its operands' errors make, the sum of the absolute
    terms, the number of terms that are not 0, the factors of the longest, and the largest product of operands above 1."""

    value: Array
    carried: Array
    size: Array
    count: Array
    factors: int
    reach: float
    contract: NumericContract

    def __add__(self, other: "Sum") -> "Sum":
        value, carried = self.value + other.value, self.carried + other.carried
        size, count = self.size + other.size, self.count + other.count
        return Sum(value, carried, size, count, max(self.factors, other.factors), max(self.reach, other.reach), self.contract)

    def __neg__(self) -> "Sum":
        return replace(self, value=-self.value)

    def __mul__(self, other: "Sum") -> "Sum":
        """Every term of the one with every term of the other."""
        carried = self.carried * (other.size - other.carried) + self.size * other.carried
        value, size, count = self.value * other.value, self.size * other.size, self.count * other.count
        return Sum(value, carried, size, count, self.factors + other.factors, self.reach * other.reach, self.contract)

    def rounded(self, matmuls: int = 0, scaled: int = 0) -> Approx:
        """Equation (4) of the module, as `sum_of_products` says."""
        contract, products = self.contract, self.factors - 1
        passes = 3 if matmuls and contract.dot == "tf32x3" else 1
        g = gamma(np.where(self.count > 0, products + passes * self.count - 1, 0.0), contract, matmuls > 0)
        if matmuls:
            g = np.where(self.count > 0, g + np.expm1(2 * matmuls * np.log1p(operand_roundoff(contract))) * (1 + g), 0.0)
        below = tiny(contract) * (products + scaled + contract.ftz) + 2 * matmuls * _operand_grid(contract)
        return Approx(self.value, self.carried + g * self.size + below * self.count * self.reach, contract)


def single(x: Approx) -> Sum:
    """A pair as a sum of one term, whatever it was made of."""
    size = x.size
    return Sum(x.value, x.error, size, (size > 0).astype(float), 1, max(1.0, size.max(initial=0.0)), x.contract)


def product_of(subscripts: str, *operands: Approx) -> Sum:
    """A product of pairs as for einsum, and its sum over the axes that the result lacks."""
    values, sizes = [x.value for x in operands], [x.size for x in operands]
    value, size = _einsum(subscripts, *values), _einsum(subscripts, *sizes)
    count, carried = _einsum(subscripts, *[(s > 0).astype(float) for s in sizes]), np.zeros(())
    for i, x in enumerate(operands):
        if x.error.any():
            carried = carried + _einsum(subscripts, *sizes[:i], x.error, *(np.abs(v) for v in values[i + 1 :]))
    reach = float(np.prod([max(1.0, s.max(initial=0.0)) for s in sizes]))
    return Sum(value, carried, size, count, len(operands), reach, operands[0].contract)


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


def _passes(x: Approx) -> Array:
    """Where a factor is exactly 0 or +-1."""
    size = np.abs(x.value)
    return ((size == 0) | (size == 1)) & (x.error == 0)


def _einsum(subscripts: str, *operands: Array) -> Array:
    return einsum(subscripts, *operands, optimize="greedy" if len(operands) > 2 else False)
