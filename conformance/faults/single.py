"""A subject that has one operation, and that one wrong."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from ssmspec_ref.contract import FLOAT64, Adapter, Capability, Limits, NumericContract, Subject

EVERYTHING = Limits()
Wrong: TypeAlias = tuple[Callable[..., Any], str, str, *tuple[Any, ...]]
"""What is run, its operation and its bug class; then what `single` is given further: what it declares, what it takes."""


def single(operation: str, run: Any, contract: NumericContract = FLOAT64, limits: Limits = EVERYTHING) -> Subject:
    """Named after what it runs, whose docstring says what is wrong."""
    return Subject(run.__name__, {operation: Capability(run, contract, limits)}, absent={"": "a fault of one operation"})


def adapter_of(name: str, faults: Iterable[Wrong]) -> Adapter:
    """The faults of one file as an adapter, each a subject of its own."""
    return Adapter(f"faulty {name}", "1", tuple(single(operation, run, *given) for run, operation, _, *given in faults))
