"""A planted fault, and how a row of a table becomes one.

    (lost_skip, "ssd.scan", "VARIANT", FP32)

A row is what is wrong, the operation whose cases must fail it, its bug class (`classes`), and, if they are not the defaults,
the contract that it declares, the limits of what it takes and the laws of bits that it declares. What is wrong is a `Mistake`
of a right operation, or a function or a class that has the mistake, with the name and the docstring of a fault. Several
operations are those of one subject, of which the first must fail.
"""

import inspect
import re
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ssmspec_ref.contract import FLOAT64, Adapter, Capability, Graph, Limits, NumericContract, Subject

from ..mistakes.mistake import Mistake
from .right import right

EVERYTHING = Limits()
FP32 = NumericContract()
THREAD = re.compile(r"[\w.-]+/[\w.-]+#\d+|[\w-]+#\d+")
Row: TypeAlias = tuple[Any, str | tuple[str, ...], str, *tuple[Any, ...]]
"""What is wrong, its operation or operations, its bug class; then further arguments of `single`."""


@dataclass(frozen=True)
class Fault:
    """One wrong implementation: the subject that contains it, and the operation that must fail it.

    `says` describes the mistake; `source` is a public thread about it, "" if there is none.
    """

    name: str
    bug_class: str
    operation: str
    says: str
    source: str
    subject: Subject

    @property
    def capability(self) -> Capability:
        return self.subject.capabilities[self.operation]


def single(
    operation: str | tuple[str, ...],
    run: Any,
    contract: NumericContract = FLOAT64,
    limits: Limits = EVERYTHING,
    bitwise: tuple[str, ...] = (),
) -> Subject:
    """A subject with one mistake, named after it, in one operation or in several."""

    def of(name: str) -> Any:
        return run.made(name, right, contract.io == "fp32") if isinstance(run, Mistake) else run

    names = (operation,) if isinstance(operation, str) else operation
    capabilities = {name: Capability(of(name), contract, limits, bitwise) for name in names}
    return Subject(run.__name__, capabilities, absent={"": "a fault of one operation"})


def fault(bug_class: str, operation: str, subject: Subject) -> Fault:
    """The fault of a subject; its description is the docstring of the function or class that it runs."""
    run: Any = subject.capabilities[operation].run
    while isinstance(run, partial | Graph):
        run = run.func if isinstance(run, partial) else run.prepare
    told = inspect.getdoc(run if inspect.isfunction(run) or inspect.isclass(run) else type(run)) or ""
    said = " ".join(told.split())
    source = THREAD.search(said)
    return Fault(subject.name, bug_class, operation, said, source[0] if source else "", subject)


def planted(*rows: Row) -> tuple[Fault, ...]:
    """The faults of a table."""
    made = []
    for run, operation, bug_class, *how in rows:
        first = operation if isinstance(operation, str) else operation[0]
        made.append(fault(bug_class, first, single(operation, run, *how)))
    return tuple(made)


def adapter_of(name: str, faults: tuple[Fault, ...]) -> Adapter:
    """Faults as an adapter, each as one subject."""
    return Adapter(f"faulty {name}", "1", tuple({id(one.subject): one.subject for one in faults}.values()))
