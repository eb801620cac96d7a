"""Drafting and acceptance together, by an implementation's own random numbers: what is generated has the target's law.

    sampled(p, q, roots, count, drafts, seed) -> tokens[, proposed, accepted]

p and q (i i) are models of one token's memory: row x is the law of what follows token x, for the target and the draft. Row r
starts after `roots[r]`; it drafts, verifies and emits until it has `count` tokens. Every other operation of acceptance gets
its drafts, their law and its noise from the suite; here the drafts are really drawn from the q of the ratio, or not.

The expected counts are exact: plain decoding from p, enumerated with fractions (`ssmspec_ref.accept.exact_law`). Counted are

runs    how often every run of tokens follows every root, over all rows of one call
rows    in how many pairs of rows, at distances of 1, 2, 4 .., both have the same run
calls   in how many rows a call with the next seed gives the same run

If the numbers are fresh, each count is a sum of independent terms, and stays within Bernstein's limit (`judge.rounding`),
except with a probability of 1e-9 for all counts of a call. A run of probability 0 must not occur at all. Power: of n rows of
a root, a change of a probability P by more than the limit and 3.1 standard deviations is seen with a probability of 0.999;
with 10,000 rows and P = 0.1 that is 0.032.

Sizes: 5,000 b rows, i tokens of the vocabulary, j tokens generated, t drafts of a window.
"""

from collections.abc import Mapping
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from ssmspec_ref.accept.exact_law import law_of_model
from ssmspec_ref.contract import Capability, NumericContract
from ssmspec_ref.shapes import Array

from ...cases import Case
from ...errors import WrongCounts
from ...judge.draw import Draw
from ...judge.random_sums import limit, pairs
from ..acceptance import fractions, on_grid
from ..called import Arguments, Came
from ..expected import Expected
from ..generate import counted
from ..specification import Specification
from ..tables import sizes_of

EACH, RUNS = 5000, 100
"""Rows for each of b, since fewer would show nothing, and most counts of runs."""


def draw(case: Case, contract: NumericContract) -> Arguments:
    """Laws on the grid of fp32; with `laws=near` those of the draft are near the target's, with `laws=zeros` both have
    tokens without weight."""
    draw = Draw(case, contract)
    b, i, j, t = draw.shape("b i j t")
    p, q = (draw.rng(name).gamma(1.0, size=(i, i)) + 0.05 for name in "pq")
    if draw.options["laws"] == "near":
        q = p * draw.rng("near").uniform(0.7, 1.4, (i, i))
    if draw.options["laws"] == "zeros":
        p, q = (np.where(np.arange(i) == draw.rng(f"zero {n}").integers(0, i, (i, 1)), 0.0, x) for n, x in enumerate((p, q)))
    return on_grid(p[None])[0], on_grid(q[None])[0], np.arange(EACH * b) % i, j, t, int(draw.rng("seed").integers(1 << 31))


def run(capability: Capability, arguments: Arguments) -> Came:
    """The counts of two calls, whose seeds differ by one, and the drafts of both. Raises: WrongCounts."""
    p, q, roots, count, drafts, seed = arguments
    given = p, q, roots, count, drafts
    (first, told), (second, more) = (counted(capability.run(*given, one)) for one in (seed, seed + 1))
    for tokens in (first, second):
        check(tokens, (len(roots), count), len(p))
    code, again = (tokens.astype(np.int64) @ len(p) ** np.arange(count)[::-1] for tokens in (first, second))
    runs = np.zeros((len(p), len(p) ** count))
    np.add.at(runs, (roots, code), 1.0)
    rows = np.array([float(np.sum(code[a] == code[b])) for a, b in apart(len(roots))])
    drawn = (told[0] + more[0], told[1] + more[1]) if told and more else None
    return Came((runs, rows, np.array([float(np.sum(code == again))])), drafts=drawn)


def check(tokens: Any, shape: tuple[int, int], vocabulary: int) -> None:
    """Raises: WrongCounts unless the tokens are integers of the vocabulary, `count` in each row."""
    if not isinstance(tokens, np.ndarray) or tokens.dtype.kind not in "iu" or tokens.shape != shape:
        came = f"{tokens.dtype} {tokens.shape}" if isinstance(tokens, np.ndarray) else f"a {type(tokens).__name__}"
        raise WrongCounts(f"the tokens are {came}; return an array of integers {shape}, the generated tokens of every row")
    if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
        raise WrongCounts(f"a token is {int(tokens.min())} or {int(tokens.max())}; all must be 0 to {vocabulary - 1}")


def expect(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
    """The counts of plain decoding from p, with Bernstein's limit."""
    p, _, roots, count, _, _ = arguments
    rows = fractions(p)
    tokens = range(len(p))
    law = np.zeros((len(p), len(p) ** count))
    for root in tokens:
        exact = law_of_model(lambda begun: rows[begun[-1]], count, (root,))
        law[root] = [float(exact.get(run, Fraction(0))) for run in product(tokens, repeat=count)]
    many, alike = np.bincount(roots, minlength=len(p))[:, None], law @ law.T
    together = [alike[roots[a], roots[b]] for a, b in apart(len(roots))]
    again = alike[roots, roots]
    sums = law.size + len(together) + 1
    return [
        _count("runs after each root", "i m", many * law, many * law * (1 - law), sums),
        _count("pairs of rows with one run", "m", *_sums(together), sums),
        _count("rows with the run of another seed", "m", *_sums([again]), sums),
    ]


def apart(rows: int) -> list[tuple[Array, Array]]:
    """Disjoint pairs of rows at every distance that is a power of two."""
    return [pairs(rows, 1 << n) for n in range((rows // 2).bit_length())]


def _sums(chances: list[Array]) -> tuple[Array, Array]:
    """The mean and the variance of counts of independent events."""
    return np.array([c.sum() for c in chances]), np.array([np.sum(c * (1 - c)) for c in chances])


def _count(name: str, axes: str, mean: Array, variance: Array, sums: int) -> Expected:
    """A count with its limit; what cannot vary must be equal."""
    room = np.vectorize(lambda v: limit(float(v), sums) if v > 0 else 0.0)(variance)
    return Expected(name, axes, mean, room)


def counted_well(sizes: Mapping[str, int]) -> bool:
    """Whether each run comes often enough to be counted."""
    return sizes["i"] ** (sizes["j"] + 1) <= RUNS


SPECIFICATION = Specification(
    operation="generate.sampled",
    base={"b": 6, "i": 3, "j": 3, "t": 3},
    rows=sizes_of("t1", "t2", "t5,j2", "i2,j5", "i7,j1", "b5,t8"),
    options={"laws": ("apart", "near", "zeros")},
    families=("normal",),
    sources={"": "arXiv:2211.17192, section 2.3; bug classes Q-MISMATCH, RNG"},
    draw=draw,
    expect=expect,
    run=run,
    ok=counted_well,
)
