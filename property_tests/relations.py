"""What laws are stated with: a recurrence's operations and one drawn input, and the two ways of comparing.

What is exact in any order and precision is compared with ==; what rounds, by the running bounds of both sides, added.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from conformance.suite import SPECIFICATIONS
from ssmspec_ref import error_bounds, tree
from ssmspec_ref.contract import Capability, NumericContract, Subject
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array

MODULES: dict[str, Any] = {"ssd": error_bounds.ssd, "delta": error_bounds.delta, "selective": error_bounds.selective}
LINEAR = {"ssd": "x", "delta": "v"}
"""What the output and the state are linear in, beside the state before."""


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
        """How far `scan` may be off: outputs and state; `wrong` is what S is off by already."""
        of = MODULES[self.kind].scan
        given = {} if wrong is None else {"inexact": {"S": wrong}}
        y, S_next = of(S, window, self.params if params is None else params, self.contract, **given)
        return y.error, S_next.error

    def tree(self, parents: Array, window: Any) -> tuple[Array, Array]:
        """Outputs at every node, and their bounds."""
        ancestors, capability = tree.ancestors(parents), self.capability("verify_tree")
        y = capability.run(self.S.copy(), each(np.copy, window), ancestors, self.params)
        return y.astype(np.float64), MODULES[self.kind].tree(
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
    """Within the bounds of both, NaN never."""
    shaped(what, one, other, *allowed)
    error, bound = np.abs(one - other), np.sum(allowed, axis=0) * (1 + 2.0**-20)
    if not np.all(error <= bound):
        raise Broken(
            f"{what}: {np.max(error - bound):.3g} beyond the bounds, at {np.argwhere(~(error <= bound))[0].tolist()}"
        )


def equal(what: str, one: Array, other: Array) -> None:
    shaped(what, one, other)
    if not np.array_equal(one, other):
        raise Broken(f"{what}: {np.count_nonzero(~(one == other))} of {one.size} values are not equal")


def given_of(kind: str, subject: Subject, family: str, seed: int) -> Given:
    """An input as the suite draws it, in the formats of the subject's contract."""
    specification = next(s for s in SPECIFICATIONS if s.operation == f"{kind}.scan")
    case = specification.case({"t": 6}, {}, family, seed)
    S, window, params = specification.draw(case, subject.capabilities[f"{kind}.scan"].contract)
    return Given(kind, subject, S, window, params)
