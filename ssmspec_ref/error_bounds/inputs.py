"""The records of the reference as pairs.

A bound takes the same records as the reference. If an input already has an error, because an earlier stage computed it, that
error is passed by the name of its field: `inexact={"x": error, "dt": error}`; "S" and "M" are the states.
"""

from collections.abc import Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..contract import NumericContract
from ..errors import ParameterError
from ..shapes import Array
from .arithmetic import Approx, exact

Inexact = Mapping[str, Array] | None


def lift(contract: NumericContract, inexact: Inexact, *records: Any, **arrays: Array) -> SimpleNamespace:
    """Every array of the records, and those given by name, as a pair; other values are unchanged.

    Raises: ParameterError for an error whose name is not an input.
    """
    inputs = {f.name: getattr(record, f.name) for record in records for f in fields(record)} | arrays
    errors = dict(inexact or {})
    unknown = sorted(name for name in errors if not isinstance(inputs.get(name), np.ndarray))
    if unknown:
        known = sorted(name for name, value in inputs.items() if isinstance(value, np.ndarray))
        raise ParameterError(f"there are errors for {unknown}, which are not inputs here; the inputs are {known}")
    return SimpleNamespace(
        **{
            name: exact(value, contract, errors.get(name)) if isinstance(value, np.ndarray) else value
            for name, value in inputs.items()
        }
    )


def paired(contract: NumericContract, inexact: Inexact, *records: Any, **arrays: Array) -> tuple[Any, ...]:
    """The arrays given by name as pairs, then the records with pairs in place of arrays, as the reference takes them.

    The records were checked when they were made of arrays, and are not again.

    Raises: ParameterError for an error whose name is not an input.
    """
    pairs, made = lift(contract, inexact, *records, **arrays), []
    for record in records:
        made.append(object.__new__(type(record)))
        for f in fields(record):
            object.__setattr__(made[-1], f.name, getattr(pairs, f.name))
    return (*(getattr(pairs, name) for name in arrays), *made)


def values(kind: Any, **pairs: Approx | None) -> tuple[Any, dict[str, Array]]:
    """A record of the values, and the errors by name: the inputs of a bound for the next stage."""
    given = {name: pair for name, pair in pairs.items() if pair is not None}
    return kind(**{name: pair.value for name, pair in given.items()}), {name: pair.error for name, pair in given.items()}


def joined(parts: list[Approx]) -> Approx:
    """The pairs of successive tokens, stacked along a new axis after the rows."""
    value, error = (np.stack([getattr(p, field) for p in parts], axis=1) for field in ("value", "error"))
    return Approx(value, error, parts[0].contract)


def appended(parts: list[Approx]) -> Approx:
    """The pairs of successive chunks, concatenated."""
    value, error = (np.concatenate([getattr(p, field) for p in parts], axis=1) for field in ("value", "error"))
    return Approx(value, error, parts[0].contract)
