"""Expected outputs: the oracle's values, each with the error bound of a contract, and what of them is compared."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import FLOAT64, NumericContract
from ssmspec_ref.shapes import Array

from .called import Arguments
from .weights_used import in_place


@dataclass(frozen=True)
class Expected:
    """One expected output: the oracle's value, the error bound of the declared contract, and the mask of compared elements.

    `axes` names the axes of the arrays; `state` marks states, `recurrent` those stored in the contract's state format;
    `judged` is False at padding and no-ops. `whole` marks integers of any size, which no format of numbers holds.
    """

    name: str
    axes: str
    value: Array
    bound: Array
    state: bool = False
    recurrent: bool = False
    judged: Array | None = None
    whole: bool = False


def unseen(name: str, axes: str, shape: tuple[int, ...]) -> Expected:
    """An output of which only the shape and the type are tested."""
    zero, never = np.zeros(shape), np.zeros((1,) * len(shape), dtype=bool)
    return Expected(name, axes, zero, zero, judged=never)


Output = tuple[str, str, str]
"""The name of an output, its axes, and "S" for a recurrent state, "M" for a window of the convolution, "" otherwise."""

UNBOUNDED: ContextVar[bool] = ContextVar("UNBOUNDED", default=False)
"""Whether `expecting` leaves out the bounds, which take most of its time: they are 0."""


@contextmanager
def unbounded() -> Iterator[None]:
    """In the block the reference computes values only; for a search that has the bounds already. Never judge with them."""
    token = UNBOUNDED.set(True)
    try:
        yield
    finally:
        UNBOUNDED.reset(token)


def expecting(
    oracle: Callable[..., tuple[Array, ...]],
    bound: Callable[..., Any],
    outputs: tuple[Output, ...],
    judged: Callable[[Arguments], list[Array | None]] | None = None,
) -> Callable[[Arguments, NumericContract, Any], list[Expected]]:
    """The expected outputs of a pure operation: the oracle's values, each with the contract's bound plus the oracle's own.

    `bound(*arguments, contract)` gives for each output how far an implementation of a contract may deviate from exact
    arithmetic.
    """

    def expect(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        arguments = in_place(arguments, used, contract)
        values = oracle(*arguments)
        masks = judged(arguments) if judged else [None] * len(outputs)
        if UNBOUNDED.get():
            return [
                Expected(name, axes, value, np.zeros(value.shape), bool(role), role == "S", mask)
                for (name, axes, role), value, mask in zip(outputs, values, masks, strict=True)
            ]
        bounds = zip(*(bound(*arguments, c) for c in (contract, *oracles(contract))), strict=True)
        return [
            Expected(name, axes, value, allowed([pair.error for pair in pairs], contract), bool(role), role == "S", mask)
            for (name, axes, role), value, pairs, mask in zip(outputs, values, bounds, masks, strict=True)
        ]

    return expect


def oracles(contract: NumericContract) -> tuple[NumericContract, ...]:
    """The contract of the oracle, whose own error is added if an implementation is float64 too."""
    return (FLOAT64,) if contract.accumulate == "fp64" else ()


def orders(contract: NumericContract) -> tuple[NumericContract, ...]:
    """The declared order and the sequential one, for runs over several calls, whose bounds are added.

    A run may be chunked in one call and sequential in the next. The recurrences are affine in the state, so an error left by
    one call is propagated as in the whole run's bound for that order, and the error added by the next call is within the
    whole run's bound for the other order. The state is stored after every call.
    """
    stored = replace(contract, stored_every_token=True)
    return (stored,) if contract.order == "sequential" else (stored, replace(stored, order="sequential"))


def allowed(errors: list[Array], contract: NumericContract) -> Array:
    """The sum of bounds. For a narrower format the oracle's own bound is u_64 / u of it, at most 2^-29; 2^-24 is added."""
    total: Array = np.sum(errors, axis=0)
    return total if contract.accumulate == "fp64" else total * (1 + 2.0**-24)
