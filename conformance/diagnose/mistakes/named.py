"""Inputs by their names, and what a mistake is."""

from collections.abc import Callable, Iterator, Mapping

from ...suite.specification import Arguments
from ..leaves import Leaf

Made = Iterator[tuple[str, Callable[[Arguments], Arguments]]]
"""Mistakes in words, each as a change of the arguments."""
Named = Mapping[str, Leaf]
Of = Callable[[Callable[[Arguments, Named], Arguments]], Callable[[Arguments], Arguments]]
"""Makes a function of the arguments of one that also takes their leaves by name."""
EACH = "*"
"""What the path of an input of every window holds."""


def by_name(every: list[Leaf]) -> Named:
    return {leaf.name: leaf for leaf in every}
