"""Functions that are evaluated with an absolute error: tables, polynomials, instructions such as tanh.approx."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ParameterError

FUNCTIONS = ("exp", "softplus", "sigmoid", "silu", "tanh")
"""The functions that may have an absolute error."""
LARGEST_ERROR = 1e-3
"""The largest absolute error that may be declared: with more, planted faults would pass."""
LONGEST = 80
"""Characters of a source, which is printed beside every cell of the contract."""
PRINTED = re.compile(rf"(?:^|/)((?:{'|'.join(FUNCTIONS)}) within [\d.e+-]+(?: in \S+ \.\. \S+)?) \(")
"""What of a contract, as it is printed, names a function with an absolute error; the source follows in parentheses."""


@dataclass(frozen=True)
class Approximation:
    """A function f that is computed as f^, |f^(x) - f(x)| <= `error` for every x in `low` .. `high`.

    This error is added to the one that the contract allows everywhere (`function_ulp`).

    `function` is one of `FUNCTIONS`. `source` says who promises the error: a table, a manual, a measurement.

    Raises: ParameterError for an unknown function, an error that is not above 0 and at most `LARGEST_ERROR`, a missing source
    or one that does not fit on a line, and a range that is empty.
    """

    function: str
    error: float
    source: str
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS:
            raise ParameterError(f"function of an approximation is {self.function!r}; give one of {', '.join(FUNCTIONS)}")
        if not _number(self.error) or not 0 < self.error <= LARGEST_ERROR:
            raise self._refused("error", f"it must be above 0 and at most {LARGEST_ERROR:g}")
        if not isinstance(self.source, str) or not self.source.strip():
            raise self._refused("source", "say in a few words who promises the error")
        if len(self.source) > LONGEST or not self.source.isprintable():
            raise self._refused("source", f"give one line of at most {LONGEST} characters")
        for name in ("low", "high"):
            if not _number(getattr(self, name)):
                raise self._refused(name, "give a number, or leave it out for no limit")
        if not self.low < self.high:
            raise self._refused("low", f"it must be below high, which is {self.high!r}")

    def _refused(self, name: str, needed: str) -> ParameterError:
        return ParameterError(f"{name} of the approximation of {self.function} is {getattr(self, name)!r}; {needed}")

    def __str__(self) -> str:
        within = "" if math.isinf(self.low) and math.isinf(self.high) else f" in {self.low:g} .. {self.high:g}"
        return f"{self.function} within {self.error:g}{within} ({self.source})"


def _number(given: Any) -> bool:
    """Whether it is a number; NaN is none."""
    return isinstance(given, int | float) and not isinstance(given, bool) and given == given


def declared(given: Any) -> tuple[Approximation, ...]:
    """The approximations of a contract. Raises: ParameterError for anything but a list or a tuple of them."""
    if not isinstance(given, Sequence) or not all(isinstance(one, Approximation) for one in given):
        raise ParameterError(
            f"approximations is {given!r}; give a list of Approximation(function, error, source, low, high), "
            "in a program of JSON objects with these fields"
        )
    return tuple(given)


def printed(contract: str) -> list[str]:
    """The functions with an absolute error, as a printed contract names them, without their sources."""
    return PRINTED.findall(contract)
