"""A subject that has one operation, and that one wrong."""

from typing import Any

from ssmspec_ref.contract import FLOAT64, Capability, Limits, NumericContract, Subject

EVERYTHING = Limits()


def single(operation: str, run: Any, contract: NumericContract = FLOAT64, limits: Limits = EVERYTHING) -> Subject:
    """Named after what it runs, whose docstring says what is wrong."""
    return Subject(run.__name__, {operation: Capability(run, contract, limits)}, absent={"": "a fault of one operation"})
