"""The terms of the laws: a recurrence's operations and one drawn input, and two ways of comparing.

Values that are exact in any order and precision are compared with ==; rounded ones within the bounds of both sides, added.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from conformance.suite import of_operation
from conformance.suite.recurrences import RECURRENCES
from ssmspec_ref import tree
from ssmspec_ref.contract import Capability, NumericContract, Subject
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array


class Broken(AssertionError):
    """A law does not hold."""


@dataclass(frozen=True)
class Given:
    """A subject with the operations of one recurrence, and an input: S, a window of at least four tokens, parameters."""

    kind: str
    subject: Subject
    S: Array
    window: Any
    params: Any

    def capability(self, operation: str) -> Capability:
        return self.subject.capabilities[f"{self.kind}.{operation}"]

    @property
    def contract(self) -> NumericContract:
        return self.capability("scan").contract

    def scan(self, S: Array, window: Any, params: Any = None) -> tuple[Array, Array]:
        y, S_next = self.capability("scan").run(S.copy(), each(np.copy, window), self.params if params is None else params)
        return y.astype(np.float64), S_next.astype(np.float64)

    def bound(self, S: Array, window: Any, params: Any = None, wrong: Array | None = None) -> tuple[Array, Array]:
        """The error bounds of `scan`: outputs and state; `wrong` is the error that S already has."""
        of = RECURRENCES[self.kind].bounds.scan
        given = {} if wrong is None else {"inexact": {"S": wrong}}
        y, S_next = of(S, window, self.params if params is None else params, self.contract, **given)
        return y.error, S_next.error

    def tree(self, parents: Array, window: Any) -> tuple[Array, Array]:
        """Outputs at every node, and their bounds."""
        ancestors, capability = tree.ancestors(parents), self.capability("verify_tree")
        y = capability.run(self.S.copy(), each(np.copy, window), ancestors, self.params)
        return y.astype(np.float64), RECURRENCES[self.kind].bounds.tree(
            self.S, window, ancestors, self.params, capability.contract
        ).error

    @property
    def tokens(self) -> int:
        return int(next(a for f in fields(self.window) if (a := getattr(self.window, f.name)) is not None).shape[1])


def tokens(window: Any, part: slice) -> Any:
    return each(lambda a: a[:, part], window)


def shaped(what: str, *arrays: Array) -> None:
    if len({a.shape for a in arrays}) > 1:
        raise Broken(f"{what}: shapes {', '.join(str(a.shape) for a in arrays)}")


def near(what: str, one: Array, other: Array, *allowed: Array) -> None:
    """Equal within the bounds of both, never for NaN."""
    shaped(what, one, other, *allowed)
    error, bound = np.abs(one - other), np.sum(allowed, axis=0) * (1 + 2.0**-20)
    if not np.all(error <= bound):
        raise Broken(f"{what}: {np.max(error - bound):.3g} above the bounds, at {np.argwhere(~(error <= bound))[0].tolist()}")


def equal(what: str, one: Array, other: Array) -> None:
    shaped(what, one, other)
    if not np.array_equal(one, other):
        raise Broken(f"{what}: {np.count_nonzero(~(one == other))} of {one.size} values are not equal")


def given_of(kind: str, subject: Subject, family: str, seed: int) -> Given:
    """An input drawn as in the suite, in the formats of the subject's contract."""
    specification = of_operation(f"{kind}.scan")[0]
    case = specification.case({"t": 6}, {}, family, seed)
    S, window, params = specification.draw(case, subject.capabilities[f"{kind}.scan"].contract)
    return Given(kind, subject, S, window, params)
