"""The same call many times in a row: an implementation that counts its calls must not run over.

With `repeat=often` a pure operation is called `OFTEN` times with the same inputs, in new arrays each time. For each
element, the output that is farthest from the first call's is compared, so that every call counts.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import Capability, NumericContract

from ...cases import Case
from ..called import Arguments, Came
from ..expected import Expected
from ..specification import Specification
from ..tables import Further, of_axes
from .option import Option

OFTEN = 130
"""Past a count of calls in 7 bits."""


@dataclass(frozen=True)
class Often:
    """The state of a call that is made many times."""

    S: Any
    times: int = OFTEN


@dataclass(frozen=True)
class Repeat(Option):
    """A pure operation whose call is repeated, in one small case."""

    tiny: Mapping[str, int]
    name, source, off = "repeat", "bug class SCHED", "once"

    def values(self, of: Specification) -> tuple[str, ...]:
        return ("often",)

    def cases(self, of: Specification) -> tuple[Further, ...]:
        return ((of_axes(of.base, {**self.tiny, "b": 1, "t": 2}), {"repeat": "often"}, of.families[0]),)

    def marks(self, arguments: Arguments) -> bool:
        return isinstance(arguments[0], Often)

    def draw(self, of: Specification, case: Case, contract: NumericContract) -> Arguments:
        S, *rest = of.draw(case, contract)
        return Often(S), *rest

    def run(self, of: Specification, capability: Capability, arguments: Arguments) -> Came:
        S, *rest = arguments
        return farthest([of.run(capability, copy.deepcopy((S.S, *rest))) for _ in range(S.times)])

    def expect(self, of: Specification, arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        S, *rest = arguments
        return of.expect((S.S, *rest), contract, used)


def farthest(calls: list[Came]) -> Came:
    """The outputs of equal calls in one: each element is the one farthest from the first call's. A call whose outputs
    cannot be compared with those of the first is returned as it is."""
    first, *others = calls
    found = list(first.outputs)
    for other in others:
        if len(other.outputs) != len(found):
            return other
        for number, (new, old, began) in enumerate(zip(other.outputs, found, first.outputs, strict=True)):
            if not all(isinstance(a, np.ndarray) for a in (new, began)) or (new.shape, new.dtype) != (
                began.shape,
                began.dtype,
            ):
                return other
            far, near = (np.nan_to_num(np.abs(a - began), nan=np.inf, posinf=np.inf) for a in (new, old))
            found[number] = np.where(far > near, new, old)
    return replace(first, outputs=tuple(found))
