"""Compare by bound: how much of the allowed error was used."""

from dataclasses import dataclass

import numpy as np

from ..errors import ParameterError, ShapeMismatch
from ..shapes import Array


@dataclass(frozen=True)
class Comparison:
    """`utilisation` is max |actual - expected| / bound: 1 is the largest allowed value. 0 / 0 counts as 0, x / 0 as inf.

    `worst` is the index of this maximum, `error` and `bound` are the values there, `count` the elements above their bound.
    """

    utilisation: float
    worst: tuple[int, ...]
    error: float
    bound: float
    count: int
    size: int

    @property
    def passed(self) -> bool:
        """Whether the comparison passed; NaN does not pass."""
        return bool(self.utilisation <= 1)

    def __str__(self) -> str:
        return (
            f"utilisation {self.utilisation:.3g} (error {self.error:.3g}, bound {self.bound:.3g}) at {list(self.worst)}, "
            f"{self.count} of {self.size} above their bound"
        )


def compare(actual: Array, expected: Array, bound: Array) -> Comparison:
    """Compare the output of an implementation with the reference's value, element by element, against a bound.

    A bound of 0 requires equality. NaN or inf where the reference is finite is a failure: utilisation inf, for any bound.

    Raises: ShapeMismatch; ParameterError if the reference or the bound is NaN or infinite, or a bound is negative. That is an
    error of the test suite: it drew inputs that the contract's formats cannot represent.
    """
    if not actual.shape == expected.shape == bound.shape:
        raise ShapeMismatch(
            f"actual, expected and bound have shapes {actual.shape}, {expected.shape} and {bound.shape}; "
            "give one value and one bound for each element of the oracle's output"
        )
    for name, array in (("the oracle's value", expected), ("the bound", bound)):
        if not np.all(np.isfinite(array)):
            where = np.unravel_index(int(np.argmin(np.isfinite(array))), array.shape)
            raise ParameterError(f"{name} is not finite at {[int(i) for i in where]}; draw inputs that the formats can hold")
    if np.any(bound < 0):
        raise ParameterError(f"a bound is {bound.min()}; it must be at least 0")
    if actual.size == 0:
        return Comparison(0.0, (), 0.0, 0.0, 0, 0)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        actual = actual.astype(np.float64)
    finite = np.isfinite(actual)
    error = np.where(finite, np.abs(np.where(finite, actual, 0.0) - expected), np.inf)
    used = np.where(error == 0, 0.0, np.inf)
    np.divide(error, bound, out=used, where=(bound > 0) & finite)
    worst = tuple(int(i) for i in np.unravel_index(int(np.argmax(used)), used.shape))
    return Comparison(
        float(used[worst]), worst, float(error[worst]), float(bound[worst]), int(np.sum(~(used <= 1))), used.size
    )
