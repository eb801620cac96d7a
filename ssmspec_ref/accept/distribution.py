"""Distributions over the vocabulary, as sequences of numbers: the same functions run on floats and on fractions.

A row is a list of float, a list of Fraction, or a row of a float64 array. It is checked by hand, not by annotation, because a
fraction has no dtype. Fractions must sum to one exactly. A row of V floats must miss one by at most V 2^-52: if it was
divided by its own sum, added in any order, the sum is off by at most (V - 1) u and the quotients by u, relative, u = 2^-53,
and the check's own sum (correctly rounded) by u; that is (V + 1) u <= V 2^-52 to first order.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from ..errors import ParameterError, PrecisionError, ProbabilityError, ShapeMismatch
from ..shapes import NodeProbs, Probs

Number: TypeAlias = float | Fraction
Distribution: TypeAlias = Sequence[Number] | Probs
Distributions: TypeAlias = Sequence[Distribution] | NodeProbs


def distribution(name: str, row: Distribution) -> list[Number]:
    """The row as a list of plain numbers, if it is a distribution.

    Raises: ProbabilityError (NaN, negative, no token, sum not one), PrecisionError (neither float64 nor rational),
    ShapeMismatch.
    """
    numbers = _plain(name, row)
    for token, x in enumerate(numbers):
        if not x >= 0:
            raise ProbabilityError(f"{name}[{token}] came as {x}; a probability is a number >= 0")
    total = mass(numbers)
    slack = len(numbers) * 2.0**-52
    if not (abs(total - 1) <= slack if isinstance(total, float) else total == 1):
        needed = f"1 within {slack}" if isinstance(total, float) else "exactly 1"
        raise ProbabilityError(f"{name} sums to {total}, but {needed} is needed; divide the row by its sum")
    return numbers


def distributions(name: str, rows: Distributions, count: int, size: int | None = None) -> list[list[Number]]:
    """`count` rows over one vocabulary (of `size` tokens, where that is given already).

    Raises: as `distribution`; ShapeMismatch for another count, or for rows of unequal size.
    """
    if len(rows) != count:
        raise ShapeMismatch(
            f"{name} came with {len(rows)} rows, but {count} are needed; give one for each place that is read"
        )
    checked = [distribution(f"{name}[{t}]", row) for t, row in enumerate(rows)]
    for t, row in enumerate(checked):
        size = len(row) if size is None else size
        if len(row) != size:
            raise ShapeMismatch(f"{name}[{t}] holds {len(row)} tokens, but the vocabulary has {size}; give all rows the same")
    return checked


def check_tokens(name: str, tokens: Sequence[int], size: int) -> None:
    """Raise ParameterError unless every token lies in the vocabulary 0 .. size-1."""
    for t, token in enumerate(tokens):
        if not 0 <= token < size:
            raise ParameterError(f"{name}[{t}] came as {token}, but the vocabulary has {size} tokens; give 0 to {size - 1}")


def mass(row: Sequence[Number]) -> Number:
    """The sum: of fractions exactly, of floats correctly rounded."""
    exact = [x for x in row if not isinstance(x, float)]
    if len(exact) < len(row):
        return math.fsum(row)
    common = math.lcm(*(x.denominator for x in exact))
    return Fraction(sum(int(x.numerator) * (common // x.denominator) for x in exact), common)


def normalised(row: Sequence[Number]) -> list[Number]:
    """row / sum(row). The sum must not be zero."""
    total = mass(row)
    return [x / total for x in row]


def residual(p: Sequence[Number], q: Sequence[Number]) -> list[Number]:
    """What the target still owes after a token drawn from q was rejected: norm((p - q)+), or p where that has no mass.

    The mass is zero only if q >= p everywhere, hence p = q: a rejection had probability zero, and happened by rounding if at
    all. Algorithm 1 of Mamba Drafters prints (p - q)+ without the normalisation; its mass is 1 - sum min(p, q), no law to
    draw from, and as the p of a second child it is too small by that factor.

    Source: arXiv:2211.17192, section 2.3.
    """
    owed = [max(a - b, 0 * a) for a, b in zip(p, q, strict=True)]
    return normalised(owed) if mass(owed) else list(p)


def without(q: Sequence[Number], token: int) -> list[Number]:
    """q with `token` zeroed, renormalised; q itself where nothing else has mass."""
    rest = [0 * x if i == token else x for i, x in enumerate(q)]
    return normalised(rest) if mass(rest) else list(q)


def point_mass(token: int, size: int) -> list[Number]:
    """The distribution of a token that is certain; a fraction goes with floats too."""
    return [Fraction(i == token) for i in range(size)]


def acceptance(p: Number, q: Number) -> Number:
    """min(1, p / q). q must not be zero."""
    return min(1, p / q)


def argmax(row: Sequence[Number]) -> int:
    """The most probable token, the lowest of those that tie."""
    return list(row).index(max(row))


def _plain(name: str, row: Distribution) -> list[Number]:
    if isinstance(row, np.ndarray):
        if row.dtype != np.float64:
            raise PrecisionError(f"{name} came as {row.dtype}, but float64 is needed; convert and renormalise it first")
        if row.ndim != 1:
            raise ShapeMismatch(f"{name} came with shape {row.shape}, but a row over the vocabulary is needed")
    if len(row) == 0:
        raise ProbabilityError(f"{name} holds no token; a distribution needs at least one")
    for token, x in enumerate(row):
        if not isinstance(x, int | float | Fraction):
            raise PrecisionError(f"{name}[{token}] came as {type(x).__name__}, but float64 or Fraction is needed")
    return [_number(x) for x in row]


def _number(x: Number) -> Number:
    """Whole numbers as fractions, so that division stays exact; NumPy scalars as floats, whose overflow is silent."""
    if isinstance(x, float):
        return float(x)
    return Fraction(x) if isinstance(x, int) else x
