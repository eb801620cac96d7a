"""The weights that an implementation computes with, where it cannot store those given: they may differ by rounding only."""

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ssmspec_ref.contract import UNIT_ROUNDOFF, NumericContract

from ..errors import OtherWeights


def in_place(arguments: tuple[Any, ...], used: Any, contract: NumericContract) -> tuple[Any, ...]:
    """The arguments of a pure operation with the parameters that were used, where an implementation reports them.

    Raises: OtherWeights if they are not those given.
    """
    if used is None:
        return arguments
    places = [place for place, argument in enumerate(arguments) if type(argument).__name__.endswith("Params")]
    if not places:
        raise OtherWeights(f"parameters of type {type(used).__name__} came back, but the operation has none")
    check_used(arguments[places[0]], used, contract)
    return tuple(used if place == places[0] else argument for place, argument in enumerate(arguments))


def check_used(given: Any, used: Any, contract: NumericContract, name: str = "") -> None:
    """Raise OtherWeights unless every weight used is the one given, except for rounding from storing the logarithm of A.

    log x has an error of (5 + 1) u |log x|, a function of 2.5 ulp and a rounding, and exp of it 6 u: 6 u (|log x| + 1)
    relative.
    """
    if type(given) is not type(used):
        raise OtherWeights(f"used{name} is {type(used).__name__}, but {type(given).__name__} was given")
    if isinstance(given, np.ndarray):
        size = np.abs(given)
        room = 6 * UNIT_ROUNDOFF[contract.accumulate] * (np.abs(np.log(np.where(size > 0, size, 1.0))) + 1) * size
        room = room if name.endswith(".A") else np.zeros_like(size)
        if given.shape != used.shape or not np.all(np.abs(used - given) <= room):
            raise OtherWeights(
                f"used{name} is not what was given; load the given weights, and report only what rounding changed"
            )
    elif is_dataclass(given):
        for field in fields(given):
            check_used(getattr(given, field.name), getattr(used, field.name), contract, f"{name}.{field.name}")
    elif given != used:
        raise OtherWeights(f"used{name} is {used}, but {given} was given")
