"""Every mistake that the inputs of a case allow: the likeliest kinds first."""

from collections.abc import Callable

from ...suite.specification import Arguments
from ..leaves import Leaf, leaves
from .accepted import Commits, accepted
from .chunks import borders, chunks
from .masks import masks
from .named import EACH, Made, Named, by_name
from .step_sizes import Steps, step_sizes
from .terms import Late, terms
from .texts import texts
from .trees import tree_mistakes

Finished = Late | Steps | Commits
"""Changes that the inputs alone do not make: the outputs are changed too."""


def mistakes(operation: str, every: list[Leaf]) -> Made:
    """Each mistake that the inputs allow, in words and as a function of the arguments, whose own values it reads."""
    named = by_name(every)

    def of(change: Callable[[Arguments, Named], Arguments]) -> Callable[[Arguments], Arguments]:
        return lambda arguments: change(arguments, by_name(leaves(operation, arguments)))

    yield from accepted(named, of)
    yield from terms(operation, named, of)
    if {"x", "dt", "dt_softplus", "dt_bias"} <= named.keys() and {EACH}.isdisjoint(named["dt"].path):
        yield from step_sizes(operation, named)
    yield from borders(named, of)
    yield from masks(named, of)
    yield from texts(named, of)
    yield from tree_mistakes(every, named, of)
    yield from chunks(named, of)
