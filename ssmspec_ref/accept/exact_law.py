"""The exact distribution of what an algorithm emits, found by enumerating its random decisions with rational weights.

law(x) = sum over the scripts of outcomes that emit x of the product of their weights   (1)

The algorithm itself runs unchanged, once per script; the draws of the draft and the decisions of the acceptance are
enumerated together. An algorithm is lossless if its distribution equals the target's as fractions. Nothing is sampled, so a
difference of any size is found, and equality is a proof for the models used.
"""

import functools
import random
from collections import defaultdict
from collections.abc import Callable, Hashable
from fractions import Fraction
from typing import TypeAlias, TypeVar

from ..errors import BudgetError, EmptyWindow
from .dice import Dice, EnumeratingDice
from .draws import Context, Model

Outcome = TypeVar("Outcome", bound=Hashable)
Round: TypeAlias = Callable[[Context, Dice], Context]
"""One window after a context: returns the tokens that it emits, at least one."""


def exact_law(experiment: Callable[[Dice], Outcome]) -> dict[Outcome, Fraction]:
    """The distribution of an experiment's outcome (1).

    Raises: PrecisionError for weights that are not rational, ProbabilityError for weights that are not a distribution.
    """
    law: dict[Outcome, Fraction] = defaultdict(Fraction)
    scripts: list[list[int]] = [[]]
    while scripts:
        dice = EnumeratingDice(scripts.pop())
        law[experiment(dice)] += dice.weight  # (1)
        scripts += dice.others
    return dict(law)


def law_of_rounds(one_round: Round, length: int, context: Context = ()) -> dict[Context, Fraction]:
    """The distribution of the first `length` tokens after `context`, window by window; tokens beyond `length` are cut.

    A window depends on earlier ones only through the tokens emitted, so each context is enumerated once.

    Raises: BudgetError for a negative length, EmptyWindow for a round that emits nothing.
    """
    if length < 0:
        raise BudgetError(f"length is {length}; it must be 0 or more")
    law: dict[Context, Fraction] = defaultdict(Fraction)
    growing = {context: Fraction(1)}
    while growing:
        begun, weight = growing.popitem()
        if len(begun) - len(context) == length:
            law[begun[len(context) :]] += weight
            continue
        for tokens, chance in exact_law(lambda dice, begun=begun: tuple(one_round(begun, dice))).items():  # type: ignore[misc]
            if not tokens:
                raise EmptyWindow(f"the round after {begun} emitted nothing; a window emits at least one token")
            longer = (*begun, *tokens)[: len(context) + length]
            growing[longer] = growing.get(longer, Fraction(0)) + weight * chance
    return dict(law)


def law_of_model(model: Model, length: int, context: Context = ()) -> dict[Context, Fraction]:
    """The distribution of plain decoding: one draw from the model per token."""
    return law_of_rounds(lambda begun, dice: (dice.pick(model(begun), 0),), length, context)


def total_variation(one: dict[Outcome, Fraction], other: dict[Outcome, Fraction]) -> Fraction:
    """Half the sum of |one - other|: the largest difference in the probability of any event."""
    return sum((abs(one.get(x, Fraction(0)) - other.get(x, Fraction(0))) for x in {**one, **other}), Fraction(0)) / 2


def rational_model(seed: str, size: int, zeros: float = 0.25) -> Model:
    """A model with another distribution for every context, with small denominators and about a quarter of zeros."""

    @functools.cache
    def model(context: Context) -> list[Fraction]:
        source = random.Random(f"{seed} {context}")
        weights = [0 if source.random() < zeros else source.randint(1, 7) for _ in range(size)]
        if not any(weights):
            weights[source.randrange(size)] = 1
        return [Fraction(weight, sum(weights)) for weight in weights]

    return model
