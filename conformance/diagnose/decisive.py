"""The inputs that control a row: counts, lengths, masks, parents, cursors, and the formats."""

from collections.abc import Mapping

import numpy as np

from ssmspec_ref.contract import NumericContract

from .entries.listed import listed
from .entries.numbers import numbers
from .leaves import leaves
from .observe import Observation

ROWS = 8
"""Most rows of which a number is listed beside that of the wrong row."""


def decisive(observation: Observation, number: int, at: Mapping[str, int], contract: NumericContract) -> str:
    """The integers and masks of the first wrong row (of its window, if there are several), and the formats. `at` is the first
    wrong place, by axis; without a row, and for a run of several sequences, the integers of all rows are listed."""
    packed = observation.case.operation.endswith("_packed")
    row, node = None if packed else at.get("b"), at.get("t")
    window = _window(observation.expected[number].name)
    told = []
    for leaf in leaves(observation.case.operation, observation.arguments):
        several = "*" in leaf.path
        if several and (window is None or window >= len(leaf.values)):
            continue
        value = leaf.values[window] if several and window is not None else leaf.value
        if not (isinstance(value, np.ndarray) and value.dtype.kind in "biu") or (row is not None and row >= len(value)):
            continue
        if value.ndim == 3 and row is not None and node is not None:  # nodes of a tree, by the nodes that each sees
            told.append(listed(f"{leaf.name} of node {node}", np.flatnonzero(value[row, node]), sep=": "))
        elif row is not None or value.ndim == 1:
            told.append(listed(leaf.name, value if row is None else value[row], node))
            if row is not None and value.ndim == 1 and 1 < len(value) <= ROWS:  # another row may decide
                told[-1] += f" ({listed('all rows', value.astype(int))})"
        if several and leaf.name == "advanced" and row is not None:
            before = sum(int(one[row]) for one in leaf.values[:window])
            told.append(f"accepted before this window: {before}")
    told += numbers(observation, at)
    if observation.expected[number].whole:
        return ", ".join(told)
    formats = [f"state {contract.state}", f"outputs {contract.io}", f"arithmetic {contract.accumulate}"]
    came = observation.came[number].dtype
    return ", ".join([*told, *formats, f"got an array of {came}"])


def _window(name: str) -> int | None:
    """The window number at the end of a name such as "y of window 2"."""
    last = name.rpartition(" ")[2]
    return int(last) if last.isdecimal() else None
