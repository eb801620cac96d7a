"""Heads that read another group, or another head of theirs."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ssmspec_ref.shapes import Array

from ...suite.called import Arguments
from ..leaves import Leaf, changed, leaves
from .named import Made


def of_groups(operation: str, every: list[Leaf]) -> Made:
    """Changes of several inputs at once: the groups of heads."""
    grouped, heads, groups = _groups(every)
    if 1 < groups <= heads:
        for says, choose in GROUPS.items():
            yield says, _of_groups(operation, choose, [leaf.name for leaf in grouped])
            for leaf in grouped:
                yield f"{says}, for {leaf.name} alone", _of_groups(operation, choose, [leaf.name])
    if 1 < groups < heads:
        for leaf in every:
            if "h" in leaf.axes and isinstance(leaf.value, np.ndarray):
                for says, read in HEADS.items():
                    yield f"every head read {leaf.name} of {says}", _of_heads(operation, leaf, read)


GROUPS: dict[str, Callable[[int, int], Array]] = {
    "head h read group h mod g (groups tiled instead of repeated)": lambda heads, groups: np.arange(heads) % groups,
    "head h read group h // g, with g groups": lambda heads, groups: np.arange(heads) // groups % groups,
    "head h read group h // g, with g groups, or the last": lambda heads, groups: np.minimum(
        np.arange(heads) // groups, groups - 1
    ),
    "every head read group 0": lambda heads, groups: np.zeros(heads, dtype=int),
    "head h read the group of head h + 1": lambda heads, groups: np.roll(np.arange(heads) // (heads // groups), -1),
    "head h read the group of head h - 1": lambda heads, groups: np.roll(np.arange(heads) // (heads // groups), 1),
}
"""The group that each head reads, from the numbers of heads and groups."""


def _groups(every: list[Leaf]) -> tuple[list[Leaf], int, int]:
    """The inputs with a group axis, the number of heads and of groups; 0 if there are none, or if they disagree."""
    grouped = [leaf for leaf in every if "g" in leaf.axes]
    heads = next((leaf.value.shape[leaf.axes.index("h")] for leaf in every if "h" in leaf.axes), 0)
    counts = {leaf.value.shape[leaf.axes.index("g")] for leaf in grouped}
    return grouped, heads, counts.pop() if len(counts) == 1 else 0


def _of_groups(operation: str, choose: Callable[[int, int], Array], some: list[str]) -> Callable[[Arguments], Arguments]:
    """Choose the group of each head for some inputs; the others use the right one."""

    def change(arguments: Arguments) -> Arguments:
        grouped, heads, groups = _groups(leaves(operation, arguments))
        own = np.arange(heads) // (heads // groups)
        chosen = [(leaf, choose(heads, groups) if leaf.name in some else own, leaf.axes.index("g")) for leaf in grouped]
        return changed(arguments, *((leaf, partial(np.take, indices=choice, axis=axis)) for leaf, choice, axis in chosen))

    return change


HEADS: dict[str, Callable[[int, int], Array]] = {
    "the first head of its group": lambda heads, groups: np.arange(heads) // (heads // groups) * (heads // groups),
    "the head with the number of its group": lambda heads, groups: np.arange(heads) // (heads // groups),
}
"""The head that each head reads, from the numbers of heads and groups."""


def _of_heads(operation: str, leaf: Leaf, read: Callable[[int, int], Array]) -> Callable[[Arguments], Arguments]:
    def change(arguments: Arguments) -> Arguments:
        _, heads, groups = _groups(leaves(operation, arguments))
        return changed(arguments, (leaf, partial(np.take, indices=read(heads, groups), axis=leaf.axes.index("h"))))

    return change
