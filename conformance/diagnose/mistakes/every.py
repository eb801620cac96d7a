"""Every mistake that the inputs of a case allow: the likeliest kinds first."""

from ..leaves import Leaf
from .accepted import Commits, accepted
from .chunks import borders, chunks
from .masks import masks
from .named import EACH, Made, by_name, of_operation
from .step_sizes import Steps, step_sizes
from .terms import Late, terms
from .texts import texts
from .trees import tree_mistakes

Finished = Late | Steps | Commits
"""Changes that the inputs alone do not make: the outputs are changed too."""


def mistakes(operation: str, every: list[Leaf]) -> Made:
    """Each mistake that the inputs allow, in words and as a function of the arguments, whose own values it reads."""
    named, of = by_name(every), of_operation(operation)
    yield from accepted(named, of)
    yield from terms(operation, named, of)
    if {"x", "dt", "dt_softplus", "dt_bias"} <= named.keys() and {EACH}.isdisjoint(named["dt"].path):
        yield from step_sizes(operation, named)
    yield from borders(named, of)
    yield from masks(named, of)
    yield from texts(named, of)
    yield from tree_mistakes(every, named, of)
    yield from chunks(named, of)
