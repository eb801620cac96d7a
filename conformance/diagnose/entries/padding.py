"""Whether a case fails only because some of its rows are padding."""

from dataclasses import replace

import numpy as np

from ssmspec_ref.shapes import Array

from ...cases import Case
from ...suite.called import Arguments
from ..leaves import Leaf, leaves


def unpadded(case: Case, arguments: Arguments) -> tuple[str, Arguments] | None:
    """The rows that are padding, and the arguments in which each of them has a slot that no other row has; None without
    padding, or where the pool is deeper in the arguments."""
    known = {leaf.name: leaf for leaf in leaves(case.operation, arguments)}
    read, write = known.get("read"), known.get("write")
    if read is None or write is None or len(read.path) != 2:
        return None
    rows = np.flatnonzero(read.value < 0)
    pool = arguments[read.path[0]]
    taken = {*read.value.tolist(), *write.value.tolist()}
    free = [slot for slot in range(len(read.value) + len(taken)) if slot not in taken][: len(rows)]
    if not len(rows):
        return None
    new = replace(pool, read=_with(read, rows, free), write=_with(write, rows, free))
    said = f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows))} {'is' if len(rows) == 1 else 'are'}"
    return said, tuple(new if at == read.path[0] else one for at, one in enumerate(arguments))


def _with(leaf: Leaf, rows: Array, slots: list[int]) -> Array:
    value: Array = leaf.value.copy()
    value[rows] = slots
    return value
