"""`*.scan` over inputs whose tokens, heads or channels lie 2^31 elements apart: an offset of 32 bits leads to another place.

The inputs are views over addresses without memory (`ssmspec_ref.slots.far`). The elements of y must be as far apart along
the same axis, which shows that such offsets were formed; otherwise nothing is tested. With three tokens, heads or channels
the offset of the second is negative in 32 bits, and that of the third is 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints

import numpy as np

from ssmspec_ref.contract import Capability, NumericContract
from ssmspec_ref.records import each
from ssmspec_ref.shapes import Array
from ssmspec_ref.slots import far

from ..cases import Case
from .specification import Arguments, Came, Expected, Further, Specification

LETTERS = {"tokens": "t", "heads": "gh", "channels": "cd"}
"""The axes that are far apart, by their letters in `shapes`."""
COUNT = 3


@dataclass(frozen=True)
class FarInputs:
    """The inputs of a call, the far axis of each of its arrays in their order (-1: it has none), and that of y."""

    inputs: Any
    axes: tuple[int, ...]
    output: int

    def apart(self) -> "FarInputs":
        """The same with each array over addresses that are far apart. Raises: NoRoom."""
        axes = iter(self.axes)
        return replace(self, inputs=each(lambda a: far_along(a, axis) if (axis := next(axes)) >= 0 else a, self.inputs))


def with_far_inputs(of: Specification) -> Specification:
    """The specification of a scan with the option `far`, which adapters must ask for; of other operations as it is."""
    if not of.operation.endswith(".scan"):
        return of
    offered = tuple(way for way, letters in LETTERS.items() if set(letters) & set(of.base))

    def draw(case: Case, contract: NumericContract) -> Arguments:
        S, inputs, *rest = of.draw(case, contract)
        way = case.options.get("far", "none")
        return S, inputs if way == "none" else marked(inputs, LETTERS[way]), *rest

    def run(capability: Capability, arguments: Arguments) -> Came:
        S, given, *rest = arguments
        return of.run(capability, (S, given.inputs if isinstance(given, FarInputs) else given, *rest))

    def expect(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        S, given, *rest = arguments
        return of.expect((S, given.inputs if isinstance(given, FarInputs) else given, *rest), contract, used)

    few = {axis: COUNT for axis in "tghcd" if axis in of.base}
    cases: tuple[Further, ...] = tuple((few, {"far": way}, of.families[0]) for way in offered)
    return replace(
        of, draw=draw, run=run, expect=expect, rare={**of.rare, "far": ("none", *offered)},
        production=(*of.production, *cases), sources={**of.sources, "far": "bug class INDEX"},
    )  # fmt: skip


def marked(inputs: Any, letters: str) -> FarInputs:
    """Inputs with the places of the axes of these letters."""
    places = tuple(next((n for n, axis in enumerate(axes) if axis in letters), -1) for axes in axes_of(inputs))
    return FarInputs(inputs, places, places[0])


def axes_of(inputs: Any) -> Iterator[list[str]]:
    """The axes of every array of some inputs, by letters: of a record as its annotations say, of a convolution (b t c)."""
    if not is_dataclass(inputs):
        yield ["b", "t", "c"]
        return
    for field in fields(inputs):
        if (a := getattr(inputs, field.name)) is not None:
            yield dims(type(inputs), field.name, a.ndim)


def dims(record: type, field: str, count: int) -> list[str]:
    """The axes of a record's array that has `count` of them, by letters."""
    hint = get_type_hints(record)[field]
    ways = [kind.dim_str.split() for kind in (hint, *get_args(hint)) if hasattr(kind, "dim_str")]
    return next(axes for axes in ways if len(axes) == count)


def far_along(a: Array, axis: int) -> Array:
    """A copy whose elements along an axis are 2^31 elements apart. Raises: NoRoom."""
    first = np.moveaxis(a, axis, 0)
    made = far(first.shape, a.dtype)
    made[:] = first
    return np.moveaxis(made, 0, axis)
