"""Inputs of which every entry may be read: what is never read holds no numbers, or large ones, and gets other tokens'.

A mask can then make a token live that the case left dead, or the path take a node that it passed by.
"""

import numpy as np

from ssmspec_ref.contract import NumericContract
from ssmspec_ref.shapes import Array

from ...judge.draw import POISON, stored
from ...suite.called import Arguments
from ..leaves import changed, leaves

SHARES = (1.0, 0.875, 0.75, 0.625, 0.9375)
"""Factors, so that the tokens that are filled differ: smaller steps, gates and keys are valid as well."""


def filled(operation: str, arguments: Arguments, contract: NumericContract) -> Arguments:
    """The arguments with numbers where none are read. Raises: what a record raises."""
    for leaf in leaves(operation, arguments):
        value = leaf.value
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.ndim > 1 and "*" not in leaf.path:
            new = _filled(value, contract)
            arguments = arguments if new is value else changed(arguments, (leaf, lambda _, new=new: new))
    return arguments


def _filled(value: Array, contract: NumericContract) -> Array:
    """The tokens that are live, in turn, a little smaller."""
    never = (value == POISON) | np.isnan(value) | np.isposinf(value)
    flat = value.reshape(value.shape[0] * value.shape[1], -1)
    dead = np.flatnonzero(never.reshape(flat.shape).any(axis=1))
    live = np.setdiff1d(np.arange(len(flat)), dead)
    if not len(dead) or not len(live):
        return value
    turn = np.arange(len(dead))
    new = flat.copy()
    new[dead] = flat[live[turn % len(live)]] * np.asarray(SHARES)[turn % len(SHARES), None]
    return stored(new, contract.io).reshape(value.shape)
