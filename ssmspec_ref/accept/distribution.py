"""Distributions over the vocabulary, as sequences of numbers: the same functions run on floats and on fractions.

A row is a list of float, a list of Fraction, or a row of a float64 array. Rows are checked here, not by annotation, because a
fraction has no dtype. Fractions must sum to one exactly. The sum of a row of V floats may differ from one by at most V 2^-52:
if the row was divided by its own sum, added in any order, the sum has a relative error of at most (V - 1) u and the quotients
of u, u = 2^-53, and the check's own sum (correctly rounded) of u; (V + 1) u <= V 2^-52 to first order.
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
    """The row as a list of plain numbers, after checking that it is a distribution.

    Raises: ProbabilityError (NaN, a negative entry, an empty row, a sum that is not one), PrecisionError (neither float64 nor
    rational), ShapeMismatch.
    """
    numbers = _plain(name, row)
    for token, x in enumerate(numbers):
        if not x >= 0:
            raise ProbabilityError(f"{name}[{token}] is {x}; it must be >= 0")
    total = mass(numbers)
    slack = len(numbers) * 2.0**-52
    if not (abs(total - 1) <= slack if isinstance(total, float) else total == 1):
        needed = f"1 within {slack}" if isinstance(total, float) else "exactly 1"
        raise ProbabilityError(f"{name} sums to {total}; it must sum to {needed}: divide the row by its sum")
    return numbers


def distributions(name: str, rows: Distributions, count: int, size: int | None = None) -> list[list[Number]]:
    """Check `count` rows over one vocabulary (of `size` tokens, if given).

    Raises: as `distribution`; ShapeMismatch for another number of rows, or for rows of unequal size.
    """
    if len(rows) != count:
        raise ShapeMismatch(f"{name} has {len(rows)} rows; it must have {count}, one for each position that is read")
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
            raise ParameterError(f"{name}[{t}] is {token}, but the vocabulary has {size} tokens; give 0 to {size - 1}")


def mass(row: Sequence[Number]) -> Number:
    """The sum: exact for fractions, correctly rounded for floats."""
    exact = [x for x in row if not isinstance(x, float)]
    if len(exact) < len(row):
        return math.fsum(row)
    common = math.lcm(*(x.denominator for x in exact))
    return Fraction(sum(int(x.numerator) * (common // x.denominator) for x in exact), common)


def normalised(row: Sequence[Number]) -> list[Number]:
    """row / sum(row). The sum must be nonzero."""
    total = mass(row)
    return [x / total for x in row]


def residual(p: Sequence[Number], q: Sequence[Number]) -> list[Number]:
    """The distribution to emit from after a token drawn from q was rejected: norm((p - q)+), or p if (p - q)+ has no mass.

    The mass is zero only if q >= p everywhere, hence p = q: then a rejection has probability zero and can only come from
    rounding. Algorithm 1 of Mamba Drafters prints (p - q)+ without the normalisation; its mass is 1 - sum min(p, q), so it is
    not a distribution, and as the p of a second child it is too small by that factor.

    Source: arXiv:2211.17192, section 2.3.
    """
    owed = [max(a - b, 0 * a) for a, b in zip(p, q, strict=True)]
    return normalised(owed) if mass(owed) else list(p)


def without(q: Sequence[Number], token: int) -> list[Number]:
    """q with `token` set to zero, renormalised; q itself if no other token has mass."""
    rest = [0 * x if i == token else x for i, x in enumerate(q)]
    return normalised(rest) if mass(rest) else list(q)


def point_mass(token: int, size: int) -> list[Number]:
    """The distribution that puts all mass on one token. Its entries are exact and can be mixed with floats."""
    return [Fraction(i == token) for i in range(size)]


def acceptance(p: Number, q: Number) -> Number:
    """min(1, p / q). q must be nonzero."""
    return min(1, p / q)


def argmax(row: Sequence[Number]) -> int:
    """The most probable token, the lowest index on ties."""
    return list(row).index(max(row))


def _plain(name: str, row: Distribution) -> list[Number]:
    if isinstance(row, np.ndarray):
        if row.dtype != np.float64:
            raise PrecisionError(f"{name} is {row.dtype}; it must be float64: convert and renormalise it first")
        if row.ndim != 1:
            raise ShapeMismatch(f"{name} has shape {row.shape}; it must be one row over the vocabulary")
    if len(row) == 0:
        raise ProbabilityError(f"{name} is empty; a distribution needs at least one token")
    for token, x in enumerate(row):
        if not isinstance(x, int | float | Fraction):
            raise PrecisionError(f"{name}[{token}] is {type(x).__name__}; it must be float64 or Fraction")
    return [_number(x) for x in row]


def _number(x: Number) -> Number:
    """Whole numbers become fractions, so that division stays exact; NumPy scalars become floats, which overflow silently."""
    if isinstance(x, float):
        return float(x)
    return Fraction(x) if isinstance(x, int) else x
