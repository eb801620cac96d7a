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

from ...cases import Case
from ..called import Arguments, Came
from ..expected import Expected
from ..specification import Specification
from ..tables import Further, of_axes
from .option import Option

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


class Far(Option):
    """The inputs of a scan far apart, which adapters must ask for."""

    name, source, off = "far", "bug class INDEX", "none"

    def values(self, of: Specification) -> tuple[str, ...]:
        scan = of.operation.endswith(".scan")
        return tuple(way for way, letters in LETTERS.items() if scan and set(letters) & set(of.base))

    def cases(self, of: Specification) -> tuple[Further, ...]:
        few = of_axes(of.base, dict.fromkeys("tghcd", COUNT))
        return tuple((few, {"far": way}, of.families[0]) for way in self.values(of))

    def marks(self, arguments: Arguments) -> bool:
        return isinstance(arguments[1], FarInputs)

    def draw(self, of: Specification, case: Case, contract: NumericContract) -> Arguments:
        S, inputs, *rest = of.draw(case, contract)
        return S, marked(inputs, LETTERS[case.options["far"]]), *rest

    def run(self, of: Specification, capability: Capability, arguments: Arguments) -> Came:
        return of.run(capability, near(arguments))

    def expect(self, of: Specification, arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
        return of.expect(near(arguments), contract, used)


def near(arguments: Arguments) -> Arguments:
    """The arguments with the inputs themselves."""
    S, given, *rest = arguments
    return S, given.inputs, *rest


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
