"""Laws and noise of sampled acceptance, where it is hardest: laws that are equal, that share nothing, that nearly agree.

Laws are multiples of 2^-24 that sum to one: exact in fp32 and as fractions. Noise is a multiple of 2^-24 in [0, 1): at 0, at
the last one, 1 - 2^-24, and at the places where a decision turns, and one step before them.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from hypothesis import strategies as st

from .token_trees import TokenTree, token_trees

GRID = 2**24
KINDS = ("equal", "disjoint", "near", "any")
"""p = q; no token of both; p and q one step apart; unrelated."""
LAWS = ("iid", "without_replacement", "point_mass", "naive")
Law = tuple[Fraction, ...]


def on_grid(weights: Sequence[int]) -> Law:
    """Weights as a law on the grid; what is missing goes to the largest."""
    counts = [weight * GRID // sum(weights) for weight in weights]
    counts[counts.index(max(counts))] += GRID - sum(counts)
    return tuple(Fraction(count, GRID) for count in counts)


@st.composite
def pairs(draw: st.DrawFn, size: int) -> tuple[Law, Law]:
    """A target law p and a draft law q over a vocabulary."""
    kind = draw(st.sampled_from(KINDS))
    weight = st.lists(st.integers(0, 7), min_size=size, max_size=size).filter(any)
    first = draw(weight)
    p = on_grid(first)
    if kind == "equal" or size == 1:
        return p, p
    if kind == "near":
        some = next(i for i, x in enumerate(p) if x > 0)
        other = (some + 1) % size
        q = list(p)
        q[some], q[other] = q[some] - Fraction(1, GRID), q[other] + Fraction(1, GRID)
        return p, tuple(q)
    second = draw(weight)
    if kind == "disjoint":
        second = [0 if x else y + 1 for x, y in zip(first, second, strict=True)]
    return p, on_grid(second) if any(second) else p


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
    """Any tree over any vocabulary, children in the support of q where their law asks for it, noise at the edges."""
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
        edges, total = [], Fraction(0)
        for x in p:
            total += x
            edges.append(total)
        picks.append(draw(noise(edges)))
    picks += [Fraction(0)] * (len(tree.tokens) - tree.size)
    return Round(tree, *zip(*laws, strict=True), tuple(coins), tuple(picks), law)  # type: ignore[arg-type]


def noise(turns: Sequence[Fraction]) -> st.SearchStrategy[Fraction]:
    """A uniform on the grid: at the ends, at the turns, one step before them, or anywhere."""
    steps = {int(turn * GRID) + off for turn in turns for off in (-1, 0, 1)}
    special = sorted({0, GRID - 1} | {step for step in steps if 0 <= step < GRID})
    return st.one_of(st.sampled_from(special), st.integers(0, GRID - 1)).map(lambda step: Fraction(step, GRID))
