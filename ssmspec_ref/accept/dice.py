"""Sources of randomness. Every algorithm of this folder is written once against `Dice` and runs unchanged with each of them.

dice              noise                                                           used for
GeneratorDice     a NumPy generator                                               decoding
UniformDice       one uniform per coin and per pick, indexed by node              comparing single decisions with a kernel
GumbelDice        one uniform per coin, Gumbel noise per pick, indexed by node    the same, for kernels that use Gumbel-max
EnumeratingDice   none: a given script of outcomes, with its exact weight         `exact_law`

Each decision is indexed by a node: the draft token that is accepted or drawn, or the token after which one is emitted. Noise
can therefore be given as an array, and two implementations use the same number for the same decision in any order of visits.

From noise to outcome: a coin of probability p is true iff u < p (1), and a pick is the first token i with
u < w_0 + .. + w_i (2), for u in [0, 1). At u = 0 a coin of probability 0 is false and a token of weight 0 is skipped; u <= p
would get both wrong. At u = 1 - 2^-24, or where rounding leaves the running sum below u, the pick is the last token with
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
    """A source of randomness: coins, and picks from a distribution.

    Raises: ProbabilityError for a p outside 0 .. 1, or weights that are not a distribution.
    """

    def bern(self, p: Number, node: int) -> bool: ...

    def pick(self, weights: Distribution, node: int) -> int: ...


class GeneratorDice:
    """A new uniform from a NumPy generator for each coin and each pick."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def bern(self, p: Number, node: int) -> bool:
        return coin(p, self.generator.random())

    def pick(self, weights: Distribution, node: int) -> int:
        return inverse_cdf(weights, self.generator.random())


class UniformDice:
    """Given uniforms: `coins[node]` decides a coin, `picks[node]` a pick.

    For a kernel that has one uniform per row for the last token, use `picks = [u] * nodes`.

    Raises: ParameterError for noise outside [0, 1), or a node without noise.
    """

    def __init__(self, coins: Sequence[Number], picks: Sequence[Number]) -> None:
        self.coins, self.picks = coins, picks

    def bern(self, p: Number, node: int) -> bool:
        return coin(p, _noise("coins", self.coins, node))

    def pick(self, weights: Distribution, node: int) -> int:
        return inverse_cdf(weights, _noise("picks", self.picks, node))


class GumbelDice:
    """Coins as in `UniformDice`; a pick is argmax_i (log w_i + gumbel of node and i), the lowest index on ties.

    A pick has the distribution of the weights if the noise is -log(-log U), U uniform.

    Raises: ParameterError for a node without noise.
    """

    def __init__(self, coins: Sequence[Number], gumbel: Sequence[Sequence[float]]) -> None:
        self.coins, self.gumbel = coins, gumbel

    def bern(self, p: Number, node: int) -> bool:
        return coin(p, _noise("coins", self.coins, node))

    def pick(self, weights: Distribution, node: int) -> int:
        return race(weights, _entry("gumbel", self.gumbel, node))[0]


class EnumeratingDice:
    """Replay a script of outcomes; after its end take the first possible outcome and record the others.

    `weight` is the exact probability of the outcomes so far, `script` these outcomes, and `others` the scripts of the
    alternatives not taken. Works on rational numbers only.
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
            raise PrecisionError(f"weights are {weights}, but an exact distribution needs Fraction; give rational models")
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
    """The token picked by u: equations (2) and (3) of the module. Raises: ProbabilityError."""
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
    """The tokens with weight, by descending log w_i + gumbel_i, ties by index.

    Raises: ProbabilityError; ParameterError for noise that is not finite, or not one number per token.
    """
    row = distribution("weights", weights)
    if len(gumbel) != len(row) or not all(math.isfinite(g) for g in gumbel):
        raise ParameterError(f"gumbel is {gumbel}; it must hold {len(row)} finite numbers, one for each token")
    arrival = {i: -(math.log(w) + gumbel[i]) for i, w in enumerate(row) if w > 0}
    return sorted(arrival, key=arrival.__getitem__)


def _check_coin(p: Number) -> None:
    if not 0 <= p <= 1:
        raise ProbabilityError(f"the probability of a coin is {p}; it must be 0 to 1")


def _entry(name: str, noise: Sequence[T], node: int) -> T:
    if not 0 <= node < len(noise):
        raise ParameterError(
            f"{name} holds noise for {len(noise)} nodes, but node {node} draws; give one entry for each node"
        )
    return noise[node]


def _noise(name: str, noise: Sequence[Number], node: int) -> Number:
    u = _entry(name, noise, node)
    if not 0 <= u < 1:
        raise ParameterError(f"{name}[{node}] is {u}; it must lie in [0, 1)")
    return u
