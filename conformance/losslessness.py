"""When a token that differs is rounding: two greedy runs of one prompt, judged by a float64 forward.

At the first token at which runs 1 and 2 differ they chose a and b. With l the float64 logits of the prefix that both share,

    e_r    = max_i |l_r,i - l_i|                                of run r, at every token up to there       (1)
    excused:  |l_a - l_b| <= e_1 + e_2  and  e_r <= 4 median(e_r)  for both runs                           (2)

(2) says that the choice was nearer than the runs' own rounding, and that this rounding is not out of the ordinary for them:
an error that flips a choice by being large is no near tie. After that token the runs have different prefixes and nothing is
judged. Numbers that are no numbers excuse nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ORDINARY = 4.0
MOST = 1e-4
"""Excused tokens among those compared, in fp32."""


@dataclass(frozen=True)
class NearTie:
    """The judgement of one token. Units: of logits."""

    excused: bool
    margin: float
    errors: tuple[float, float]
    medians: tuple[float, float]


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place at which two runs differ, or the end of the shorter one; None for equal ones."""
    for n, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return n
    return None if len(one) == len(other) else min(len(one), len(other))


def near_tie(one: np.ndarray, other: np.ndarray, exact: np.ndarray, chosen: tuple[int, int]) -> NearTie:
    """(1), (2): from logits (n, i) of both runs and of float64 up to the token that differs, and the tokens chosen there."""
    runs = [np.asarray(run, dtype=np.float64) for run in (one, other)]
    errors = [np.max(np.abs(run - exact), axis=1) for run in runs]  # (1)
    last = float(errors[0][-1]), float(errors[1][-1])
    medians = float(np.median(errors[0])), float(np.median(errors[1]))
    margin = float(abs(exact[-1, chosen[0]] - exact[-1, chosen[1]]))
    ordinary = all(e <= ORDINARY * m for e, m in zip(last, medians, strict=True))
    return NearTie(bool(margin <= last[0] + last[1] and ordinary), margin, last, medians)  # (2)
