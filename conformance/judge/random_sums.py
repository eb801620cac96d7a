"""How far sums of random terms may go before they are no chance.

    |sum| <= L / 3 + sqrt((L / 3)^2 + 2 V L),   V the sum of the variances, L = ln(2 sums / FALSE)         (1)

for terms of mean 0, given all before, that stay within 1: Bernstein's inequality for martingales (Freedman, Annals of
Probability 3, 1975). One of `sums` of them goes beyond it with a probability of at most FALSE.
"""

import numpy as np

from ssmspec_ref.shapes import Array

FALSE, SUMS = 1e-9, 100


def limit(variance: float, sums: int = SUMS) -> float:
    """The right side of (1)."""
    L = float(np.log(2 * sums / FALSE))
    return L / 3 + float(np.sqrt((L / 3) ** 2 + 2 * variance * L))


def pairs(length: int, distance: int) -> tuple[Array, Array]:
    """Disjoint pairs (i, i + distance) along an axis."""
    at = np.arange(length - distance)
    first = at[(at // distance) % 2 == 0]
    return first, first + distance
