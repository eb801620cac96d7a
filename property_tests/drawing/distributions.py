"""Distributions and noise of sampled acceptance, the hardest cases: distributions that are equal, disjoint or nearly equal,
and results of the processors of one request.

Probabilities are multiples of 2^-24 that sum to one: exact in fp32 and as fractions. Noise is a multiple of 2^-24 in [0, 1):
at 0, at the last one, 1 - 2^-24, at the thresholds of decisions, and one step before them.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from ssmspec_ref.accept.processors import Sampling, process
from ssmspec_ref.accept.sampled import LAWS

from .samplings import sampling_settings
from .token_trees import TokenTree, token_trees

GRID = 2**24
KINDS = ("equal", "disjoint", "near", "dyadic", "processed", "any")
"""p = q; disjoint; p, q one step apart; p / q on the grid; both from one request's processors; unrelated."""
Law = tuple[Fraction, ...]


def on_grid(weights: Sequence[int]) -> Law:
    """Weights as a distribution on the grid; the missing rest goes to the largest."""
    counts = [weight * GRID // sum(weights) for weight in weights]
    counts[counts.index(max(counts))] += GRID - sum(counts)
    return tuple(Fraction(count, GRID) for count in counts)


@st.composite
def pairs(draw: st.DrawFn, size: int) -> tuple[Law, Law]:
    """A target distribution p and a draft distribution q over a vocabulary."""
    kind = draw(st.sampled_from(KINDS))
    weight = st.lists(st.integers(0, 7), min_size=size, max_size=size).filter(any)
    first = draw(weight)
    p = on_grid(first)
    if kind == "equal" or size == 1:
        return p, p
    if kind == "near":
        some = next(i for i, x in enumerate(p) if x > 0)
        other = (some + 1) % size
        moved = list(p)
        moved[some], moved[other] = moved[some] - Fraction(1, GRID), moved[other] + Fraction(1, GRID)
        return p, tuple(moved)
    if kind == "dyadic":
        cuts = [0, *sorted(draw(st.lists(st.integers(0, 64), min_size=size - 1, max_size=size - 1))), 64]
        halves = [2.0 ** -min(i + 1, size - 1) for i in range(size)]
        return on_grid([b - a for a, b in pairwise(cuts)]), on_grid([int(GRID * x) for x in draw(st.permutations(halves))])
    second = draw(weight)
    if kind == "processed":
        settings, written = draw(sampling_settings(size)), draw(st.lists(st.integers(0, size - 1), max_size=3))
        p, q = (on_grid(grids(processed(logits, written, settings))) for logits in (first, second))
        return p, q
    if kind == "disjoint":
        second = [0 if x else y + 1 for x, y in zip(first, second, strict=True)]
    return p, on_grid(second) if any(second) else p


def processed(logits: Sequence[int], written: Sequence[int], settings: Sampling) -> list[float]:
    """The logits after a request's processors, if these tokens were emitted before."""
    p: list[float] = process(np.array(logits, dtype=np.float64), [], written, settings).tolist()
    return p


def grids(p: Sequence[float]) -> list[int]:
    """Weights of a distribution on the grid, at least one step where p is not 0."""
    return [max(1, int(x * GRID)) if x > 0 else 0 for x in p]


class Round(NamedTuple):
    """One window of one sequence: a tree, p and q after every node, and the noise of every node."""

    tree: TokenTree
    p: tuple[Law, ...]
    q: tuple[Law, ...]
    coins: tuple[Fraction, ...]
    picks: tuple[Fraction, ...]
    law: str


@st.composite
def rounds(draw: st.DrawFn, most: int = 8) -> Round:
    """Any tree over any vocabulary, with children in the support of q if their law needs it, and noise at the thresholds."""
    size = draw(st.integers(1, 6))
    tree = draw(token_trees(size, most))
    laws = [draw(pairs(size)) for _ in tree.tokens]
    law = draw(st.sampled_from(LAWS))
    coins, picks = [Fraction(0)] * len(tree.tokens), []
    for node in range(tree.size):
        p, q = laws[node]
        for child in range(1, tree.size):
            if tree.parents[child] == node:
                x = tree.tokens[child]
                turns = [min(Fraction(1), p[x] / q[x])] if q[x] and law != "point_mass" else [p[x]]
                coins[child] = draw(noise(turns))
        edges = list(accumulate(p))
        picks.append(draw(noise(edges)))
    picks += [Fraction(0)] * (len(tree.tokens) - tree.size)
    target, draft = (tuple(pair[i] for pair in laws) for i in (0, 1))
    return Round(tree, target, draft, tuple(coins), tuple(picks), law)


def noise(turns: Sequence[Fraction]) -> st.SearchStrategy[Fraction]:
    """A uniform on the grid: at the ends, at the thresholds, one step before them, or anywhere."""
    steps = {int(turn * GRID) + off for turn in turns for off in (-1, 0, 1)}
    special = sorted({0, GRID - 1} | {step for step in steps if 0 <= step < GRID})
    return st.one_of(st.sampled_from(special), st.integers(0, GRID - 1)).map(lambda step: Fraction(step, GRID))
