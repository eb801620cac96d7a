"""The cost of a window of N tokens, fitted to measured steps, and the tokens that it must emit to pay.

    t(N) = k N + C              a recurrent target         (1)
    t(N) = a N^2 + b N + C      with attention             (2)
    tau  > t(N) / t(1)          speculation pays           (3)

Source: STree, section 4, equations 6 to 8.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ssmspec_ref.errors import ParameterError


@dataclass(frozen=True)
class Fit:
    """The coefficients, the highest power first. Units: microseconds over tokens."""

    coefficients: tuple[float, ...]

    def __call__(self, tokens: int) -> float:
        found = 0.0
        for coefficient in self.coefficients:
            found = found * tokens + coefficient
        return found


def fit(tokens: Sequence[int], times: Sequence[float], degree: int) -> Fit:
    """The least-squares fit (1) or (2), of degree 1 or 2.

    Raises: ParameterError for fewer different sizes than coefficients.
    """
    if len(set(tokens)) <= degree or len(tokens) != len(times):
        raise ParameterError(
            f"a fit of degree {degree} got {len(times)} times at sizes {sorted(set(tokens))}; give one time for "
            "each size, and more different sizes than the degree"
        )
    powers = torch.tensor([[float(n) ** p for p in range(degree, -1, -1)] for n in tokens], dtype=torch.float64)
    wanted = torch.tensor(times, dtype=torch.float64)[:, None]
    return Fit(tuple(torch.linalg.lstsq(powers, wanted).solution[:, 0].tolist()))


def break_even(time: float, plain: float) -> float:
    """The tokens that a step must emit to be as fast as plain decoding (3)."""
    return time / plain
