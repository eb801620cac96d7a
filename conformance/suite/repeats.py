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

from ..cases import Case
from .specification import Arguments, Came, Expected, Specification, of_axes

REPEAT = {"repeat": ("once", "often")}
OFTEN = 130
"""Past a count of calls in 7 bits."""


@dataclass(frozen=True)
class Often:
    """The state of a call that is made many times."""

    S: Any
    times: int = OFTEN


def with_repeats(of: Specification, tiny: Mapping[str, int]) -> Specification:
    """The specification of a pure operation with one small case whose call is repeated."""

    def draw(case: Case, contract: NumericContract) -> Arguments:
        S, *rest = of.draw(case, contract)
        return Often(S) if case.options.get("repeat") == "often" else S, *rest

    def run(capability: Capability, arguments: Arguments) -> Came:
        S, *rest = arguments
        if not isinstance(S, Often):
            return of.run(capability, arguments)
        return farthest([of.run(capability, copy.deepcopy((S.S, *rest))) for _ in range(S.times)])

    def expect(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        S, *rest = arguments
        return of.expect((S.S if isinstance(S, Often) else S, *rest), contract, used)

    sizes = of_axes(of.base, {**tiny, "b": 1, "t": 2})
    return replace(
        of, draw=draw, expect=expect, run=run, rare={**of.rare, **REPEAT},
        production=(*of.production, (sizes, {"repeat": "often"}, of.families[0])),
        sources={**of.sources, "repeat": "bug class SCHED"},
    )  # fmt: skip


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
