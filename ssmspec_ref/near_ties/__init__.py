"""Decide whether a differing token is explained by rounding: two greedy runs of one prompt, checked by a float64 forward
pass.

At the first token where runs 1 and 2 differ, they chose a and b. With l the float64 logits of their common prefix,

    e_r    = max_i |l_r,i - l_i|                                of run r, at every token up to this one       (1)
    excused:  |l_a - l_b| <= e_1 + e_2  and  e_r <= 4 median(e_r)  for both runs                           (2)

(2) says that the margin between the two choices was within the runs' rounding errors, and that these errors are not unusual
for the runs: a choice flipped by an unusually large error is not a near tie. After that token the runs have different
prefixes, so nothing is compared. NaN excuses nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ORDINARY = 4.0
MOST = 1e-4
"""The excused fraction of compared tokens, in fp32."""


@dataclass(frozen=True)
class NearTie:
    """The result for one token. Units: of logits."""

    excused: bool
    margin: float
    errors: tuple[float, float]
    medians: tuple[float, float]


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position where two runs differ, or the end of the shorter one; None if they are equal."""
    for n, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return n
    return None if len(one) == len(other) else min(len(one), len(other))


def near_tie(one: np.ndarray, other: np.ndarray, exact: np.ndarray, chosen: tuple[int, int]) -> NearTie:
    """(1), (2). Takes logits (n, i) of both runs and of float64 up to the differing token, and the tokens chosen there."""
    runs = [np.asarray(run, dtype=np.float64) for run in (one, other)]
    errors = [np.max(np.abs(run - exact), axis=1) for run in runs]  # (1)
    last = float(errors[0][-1]), float(errors[1][-1])
    medians = float(np.median(errors[0])), float(np.median(errors[1]))
    margin = float(abs(exact[-1, chosen[0]] - exact[-1, chosen[1]]))
    ordinary = all(e <= ORDINARY * m for e, m in zip(last, medians, strict=True))
    return NearTie(bool(margin <= last[0] + last[1] and ordinary), margin, last, medians)  # (2)
