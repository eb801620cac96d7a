"""The records of the oracle as pairs.

A bound takes the records that the oracle takes. What an input is wrong by already, because an earlier stage computed it, is
given beside them by the name of its field: `inexact={"x": error, "dt": error}`; "S" and "M" name the states.
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
    """Every array of the records, and those given by name, as a pair; what is no array as it is.

    Raises: ParameterError for an error that names no input.
    """
    inputs = {f.name: getattr(record, f.name) for record in records for f in fields(record)} | arrays
    errors = dict(inexact or {})
    unknown = sorted(name for name in errors if not isinstance(inputs.get(name), np.ndarray))
    if unknown:
        known = sorted(name for name, value in inputs.items() if isinstance(value, np.ndarray))
        raise ParameterError(f"errors came for {unknown}, which are no inputs here; name some of {known}")
    return SimpleNamespace(
        **{
            name: exact(value, contract, errors.get(name)) if isinstance(value, np.ndarray) else value
            for name, value in inputs.items()
        }
    )


def values(kind: Any, **pairs: Approx | None) -> tuple[Any, dict[str, Array]]:
    """A record of the values, and the errors by name: what a bound takes after a stage that ended in pairs."""
    given = {name: pair for name, pair in pairs.items() if pair is not None}
    return kind(**{name: pair.value for name, pair in given.items()}), {name: pair.error for name, pair in given.items()}


def joined(parts: list[Approx]) -> Approx:
    """The pairs of successive tokens, along a new axis behind the rows."""
    value, error = (np.stack([getattr(p, field) for p in parts], axis=1) for field in ("value", "error"))
    return Approx(value, error, parts[0].contract)


def appended(parts: list[Approx]) -> Approx:
    """The pairs of successive chunks, one after the other."""
    value, error = (np.concatenate([getattr(p, field) for p in parts], axis=1) for field in ("value", "error"))
    return Approx(value, error, parts[0].contract)
