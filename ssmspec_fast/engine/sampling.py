"""How a request's tokens are drawn: what it asks of `processors`, and which steps that needs."""

import math
from dataclasses import astuple, dataclass
from typing import NamedTuple

from ssmspec_ref.errors import ParameterError


@dataclass(frozen=True)
class Sampling:
    """How a token is sampled. The defaults change nothing.

    Raises: ParameterError for a value outside its domain, NaN included.
    """

    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    min_tokens: int = 0

    def __post_init__(self) -> None:
        _demand("temperature", self.temperature, 0 <= self.temperature < math.inf, "a finite number >= 0; 0 is greedy")
        _demand("top_k", self.top_k, self.top_k >= 0, "0 (all) or more")
        _demand("top_p", self.top_p, 0 < self.top_p <= 1, "a number in (0, 1]")
        _demand("repetition", self.repetition, 0 < self.repetition < math.inf, "a finite number > 0")
        _demand("presence", self.presence, math.isfinite(self.presence), "a finite number")
        _demand("frequency", self.frequency, math.isfinite(self.frequency), "a finite number")
        _demand("min_tokens", self.min_tokens, self.min_tokens >= 0, "0 or more")

    @property
    def remembers(self) -> bool:
        """Whether (1) to (3) read earlier tokens."""
        return (self.repetition, self.presence, self.frequency, self.min_tokens) != (1.0, 0.0, 0.0, 0)

    @property
    def row(self) -> tuple[float, ...]:
        """The fields in their order, as `Sequences.sampling` holds them."""
        return tuple(float(value) for value in astuple(self))

    @property
    def needs(self) -> "Needs":
        return Needs(self.remembers, self.temperature == 0, self.top_k > 0, self.top_p < 1)


class Needs(NamedTuple):
    """Which steps any row needs; the others are skipped."""

    penalties: bool
    greedy: bool
    top_k: bool
    top_p: bool

    def __or__(self, other: "Needs") -> "Needs":
        return Needs(*(a or b for a, b in zip(self, other, strict=True)))


def _demand(name: str, value: float, holds: bool, needed: str) -> None:
    if not holds:
        raise ParameterError(f"{name} is {value}; it must be {needed}")
