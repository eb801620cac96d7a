"""A subject with one operation, which is wrong."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from ssmspec_ref.contract import FLOAT64, Adapter, Capability, Limits, NumericContract, Subject

EVERYTHING = Limits()
Wrong: TypeAlias = tuple[Callable[..., Any], str, str, *tuple[Any, ...]]
"""The function, its operation and its bug class; then further arguments of `single`: its contract, its limits,
and what it declares bitwise."""


def single(
    operation: str, run: Any, contract: NumericContract = FLOAT64, limits: Limits = EVERYTHING, bitwise: tuple[str, ...] = ()
) -> Subject:
    """A subject named after its function, whose docstring says what is wrong."""
    capability = Capability(run, contract, limits, bitwise)
    return Subject(run.__name__, {operation: capability}, absent={"": "a fault of one operation"})


def adapter_of(name: str, faults: Iterable[Wrong]) -> Adapter:
    """The faults of one file as an adapter, each as one subject."""
    return Adapter(f"faulty {name}", "1", tuple(single(operation, run, *given) for run, operation, _, *given in faults))
