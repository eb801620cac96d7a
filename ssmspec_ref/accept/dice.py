"""Sources of randomness. Every algorithm of this folder is written once against `Dice` and runs unchanged under each of them.

dice              noise                                                        for
GeneratorDice     a NumPy generator                                            decoding
UniformDice       one uniform for each coin and each pick, named by its node   decision by decision beside a kernel
GumbelDice        one uniform for each coin, Gumbel noise for each pick        the same, where the kernel races
EnumeratingDice   none: one script of outcomes, with its exact weight          `exact_law`

Each decision names its node: the draft token that is judged or drawn, or after which a token is emitted. So noise may be laid
out in an array, and two implementations agree on which number decides what, in whatever order they visit the nodes.

The map from noise to outcome: a coin of probability p falls on yes iff u < p (1), and a pick is the first token i with
u < w_0 + .. + w_i (2), for u in [0, 1). At u = 0 a coin of probability 0 is no and a token of weight 0 is passed over, which
u <= p would get wrong; at u = 1 - 2^-24, or where the running sum ends below u by rounding, the pick is the last token with
weight (3). A token of weight zero is never picked.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Protocol, TypeVar

import numpy as np

from ..errors import ParameterError, PrecisionError, ProbabilityError
from .distribution import Distribution, Number, distribution

T = TypeVar("T")


class Dice(Protocol):
    """A source of randomness: a coin, and a pick from a distribution.

    Raises: ProbabilityError for a p outside 0 .. 1, or weights that are no distribution.
    """

    def bern(self, p: Number, node: int) -> bool: ...

    def pick(self, weights: Distribution, node: int) -> int: ...


class GeneratorDice:
    """Fresh uniforms from a NumPy generator, one for each coin and each pick."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def bern(self, p: Number, node: int) -> bool:
        return coin(p, self.generator.random())

    def pick(self, weights: Distribution, node: int) -> int:
        return inverse_cdf(weights, self.generator.random())


class UniformDice:
    """Uniforms given as input: `coins[node]` decides a coin, `picks[node]` a pick.

    A kernel with one uniform a row for the last token is `picks = [u] * nodes`.

    Raises: ParameterError for noise outside [0, 1), or a node that has none.
    """

    def __init__(self, coins: Sequence[Number], picks: Sequence[Number]) -> None:
        self.coins, self.picks = coins, picks

    def bern(self, p: Number, node: int) -> bool:
        return coin(p, _noise("coins", self.coins, node))

    def pick(self, weights: Distribution, node: int) -> int:
        return inverse_cdf(weights, _noise("picks", self.picks, node))


class GumbelDice:
    """Coins as `UniformDice`; a pick is the race argmax_i (log w_i + gumbel[node][i]), the lowest index on ties.

    Its law is that of the weights, if the noise is -log(-log U).

    Raises: ParameterError for a node without noise.
    """

    def __init__(self, coins: Sequence[Number], gumbel: Sequence[Sequence[float]]) -> None:
        self.coins, self.gumbel = coins, gumbel

    def bern(self, p: Number, node: int) -> bool:
        return coin(p, _noise("coins", self.coins, node))

    def pick(self, weights: Distribution, node: int) -> int:
        return race(weights, _entry("gumbel", self.gumbel, node))[0]


class EnumeratingDice:
    """Replay a script of outcomes; beyond it take the first possible outcome and note the others.

    `weight` is the exact probability of what was decided so far, `script` what was decided, `others` the scripts of the
    outcomes passed over. Rational numbers only.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        self.script, self.decided = list(script), 0
        self.weight = Fraction(1)
        self.others: list[list[int]] = []

    def bern(self, p: Number, node: int) -> bool:
        _check_coin(p)
        return self._choose([1 - p, p]) == 1

    def pick(self, weights: Distribution, node: int) -> int:
        return self._choose(distribution("weights", weights))

    def _choose(self, weights: list[Number]) -> int:
        if any(isinstance(w, float) for w in weights):
            raise PrecisionError(f"weights came as {weights}, but an exact law needs Fraction; give rational models")
        if self.decided == len(self.script):
            first, *rest = [i for i, w in enumerate(weights) if w > 0]
            self.others += [[*self.script, other] for other in rest]
            self.script.append(first)
        outcome = self.script[self.decided]
        self.decided += 1
        self.weight *= Fraction(weights[outcome])
        return outcome


def coin(p: Number, u: Number) -> bool:
    """u < p (1). Raises: ProbabilityError."""
    _check_coin(p)
    return bool(u < p)  # (1)


def inverse_cdf(weights: Distribution, u: Number) -> int:
    """The token at u: equations (2) and (3) of the module. Raises: ProbabilityError."""
    last = 0
    total: Number = 0
    for token, weight in enumerate(distribution("weights", weights)):
        total = total + weight
        if u < total:
            return token  # (2)
        if weight > 0:
            last = token
    return last  # (3)


def race(weights: Distribution, gumbel: Sequence[float]) -> list[int]:
    """The tokens that have weight, in the order of their arrival: descending log w_i + gumbel_i, ties by index.

    Raises: ProbabilityError, ParameterError for noise that is not finite, or not one number for each token.
    """
    row = distribution("weights", weights)
    if len(gumbel) != len(row) or not all(math.isfinite(g) for g in gumbel):
        raise ParameterError(f"gumbel came as {gumbel}, but {len(row)} finite numbers are needed, one for each token")
    arrival = {i: -(math.log(w) + gumbel[i]) for i, w in enumerate(row) if w > 0}
    return sorted(arrival, key=arrival.__getitem__)


def _check_coin(p: Number) -> None:
    if not 0 <= p <= 1:
        raise ProbabilityError(f"a coin came with probability {p}; give 0 to 1")


def _entry(name: str, noise: Sequence[T], node: int) -> T:
    if not 0 <= node < len(noise):
        raise ParameterError(
            f"{name} holds noise for {len(noise)} nodes, but node {node} draws; give one entry for each node"
        )
    return noise[node]


def _noise(name: str, noise: Sequence[Number], node: int) -> Number:
    u = _entry(name, noise, node)
    if not 0 <= u < 1:
        raise ParameterError(f"{name}[{node}] came as {u}; a uniform lies in [0, 1)")
    return u
