"""One input changed as a whole: counts and masks, options, all values, another position, another layout, another format."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref.contract import UNIT_ROUNDOFF, NumericContract
from ssmspec_ref.shapes import Array

from ...mistakes.operators import everywhere, in_order, one, repeated, rolled, rounded_to, zero
from ..extent import word
from ..leaves import Change, Leaf

TILES = (8, 16, 32, 64)
"""Sizes of a tile whose number an implementation may leave out of an offset."""
CUT = (1.4, 1.44, 1.443, 1.442, 1.4427, 1.4426)
"""Rounded values of log2(e), as used in kernels that compute exp by exp2."""


def of_one_input(every: list[Leaf], contract: NumericContract) -> Iterator[tuple[Leaf, str, Change]]:
    """Each change of one input, in words; the likeliest kinds first."""
    for kind in (_counts, _switches, _whole, _shifts, _layouts, _formats):
        for leaf in every:
            for says, change in kind(leaf, contract):
                yield leaf, says, change


def _counts(leaf: Leaf, contract: NumericContract) -> Iterator[tuple[str, Change]]:
    """Other integers and masks."""
    if not isinstance(leaf.value, np.ndarray) or leaf.value.dtype.kind not in "biu":
        if isinstance(leaf.value, int) and not isinstance(leaf.value, bool):
            yield f"{leaf.name} were {leaf.value - 1} instead of {leaf.value}", lambda n: n - 1
            yield f"{leaf.name} were {leaf.value + 1} instead of {leaf.value}", lambda n: n + 1
        if isinstance(leaf.value, tuple) and leaf.value and all(isinstance(n, int) for n in leaf.value):
            yield f"{leaf.name} were empty", lambda n: ()
            yield f"only the first of {leaf.name} counted", lambda n: n[:1]
            yield f"only the last of {leaf.name} counted", lambda n: n[-1:]
        return
    name = leaf.name
    if leaf.value.dtype.kind == "b":
        yield f"every entry of {name} were true (no mask)", one
        yield f"{name} were inverted", np.logical_not
        if leaf.value.ndim == 3:
            yield "the tree were a chain (every node sees all nodes before it)", in_order
            yield f"{name} were transposed (a node sees its descendants)", lambda a: a.swapaxes(1, 2).copy()
            yield "a node saw only itself", lambda a: a & np.eye(a.shape[1], dtype=bool)
            yield "a node saw only itself and the root", _root_only
            yield "a node saw only itself and its parent", _parent_only
    elif name == "parents":
        yield "the tree were a chain", lambda a: np.where(a == -2, -2, np.arange(a.shape[1]) - 1)
        yield "every node hung on the root", lambda a: np.where(a == -2, -2, np.minimum(np.arange(a.shape[1]), 1) - 1)
        yield "a node hung on the parent of its parent", _grandparents
    elif name not in ("bounds", "path") or leaf.value.ndim == 1:
        yield f"{name} were one less", lambda a: np.maximum(a - 1, 0)
        yield f"{name} were one more", lambda a: a + 1
        yield f"{name} were 0", zero
        yield f"{name} were the largest of all rows", lambda a: np.full_like(a, a.max(initial=0))
    if len(leaf.value) > 1 and leaf.axes[:1] == ("b",):
        yield f"every row read {name} of row 0", everywhere(0, 0)
        yield f"row i read {name} of row i - 1", rolled()
        yield f"row i read {name} of row i + 1", rolled(0, -1)
        yield f"rows read {name} in reverse order", lambda a: a[::-1].copy()


def _root_only(a: Array) -> Array:
    seen = a & np.eye(a.shape[1], dtype=bool)
    seen[:, :, 0] = a[:, :, 0]
    return seen


def _parent_only(a: Array) -> Array:
    seen = a & np.eye(a.shape[1], dtype=bool)
    for b, t in np.argwhere(np.einsum("btt -> bt", a)):
        before = np.flatnonzero(a[b, t, :t])
        if len(before):
            seen[b, t, before[-1]] = True
    return seen


def _grandparents(a: Array) -> Array:
    made = a.copy()
    for b, row in enumerate(a):
        for node, parent in enumerate(row):
            if parent > 0:
                made[b, node] = row[parent]
    return made


def _switches(leaf: Leaf, contract: NumericContract) -> Iterator[tuple[str, Change]]:
    """Options of the parameters, omitted or switched."""
    value, name = leaf.value, leaf.name
    if name == "scale" and (value is None or isinstance(value, float)):
        yield "scale were 1 (not scaled)", lambda v: 1.0
    if isinstance(value, bool):
        yield f"{name} were {'off' if value else 'on'}", lambda v: not v
    elif isinstance(value, tuple) and len(value) == 2 and all(isinstance(v, float) for v in value):
        yield f"{name} were left out", lambda v: (0.0, float("inf"))
        yield f"the upper end of {name} were left out", lambda v: (v[0], float("inf"))
        yield f"the lower end of {name} were left out", lambda v: (0.0, v[1])
    elif isinstance(value, float):
        for says, factor in (("0", 0.0), ("ten times as large", 10.0), ("a tenth", 0.1), ("doubled", 2.0), ("halved", 0.5)):
            yield f"{name} were {says}", lambda v, factor=factor: v * factor
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f" and name in ("D", "z", "dt_bias", "bias"):
        yield f"{name} were left out", lambda v: None


def _whole(leaf: Leaf, contract: NumericContract) -> Iterator[tuple[str, Change]]:
    """Every value of an array changed in the same way."""
    if not isinstance(leaf.value, np.ndarray) or leaf.value.dtype.kind != "f":
        return
    name = leaf.name
    yield f"{name} were 0", zero
    yield f"{name} were 1", one
    yield f"{name} had the other sign", np.negative
    yield f"{name} counted twice", lambda a: 2 * a
    yield f"{name} counted half", lambda a: 0.5 * a
    yield f"{name} were squared", np.square
    if name in ("A", "g", "dt"):
        yield f"{name} were multiplied by log2(e) = 1.44", lambda a: a * np.log2(np.e)
        yield f"{name} were multiplied by ln(2) = 0.69 (exp2 for exp)", lambda a: a * np.log(2)
    if name in ("A", "g"):
        for cut in CUT:
            yield f"exp(x) were exp2({cut} x): log2(e) = 1.442695 cut short", lambda a, cut=cut: a * cut / np.log2(np.e)
    if name == "A":
        yield "A were taken for its logarithm (-exp(A))", lambda a: -np.exp(a)


def _shifts(leaf: Leaf, contract: NumericContract) -> Iterator[tuple[str, Change]]:
    """An array read at a shifted position along one axis."""
    if not isinstance(leaf.value, np.ndarray) or leaf.value.dtype.kind != "f":
        return
    for axis, letter in enumerate(leaf.axes):
        if leaf.value.shape[axis] < 2 or not letter:
            continue
        for step, sign in ((1, "-"), (-1, "+")):
            says = f"{word(letter)} i read {leaf.name} of {word(letter)} i {sign} 1"
            yield f"{says} (wrapped)", rolled(axis, step)
            yield f"{says} (0 at the end)", partial(_moved, axis, step, False)
            yield f"{says} (the end stays)", partial(_moved, axis, step, True)
        first = f"every {word(letter)} read {leaf.name} of {word(letter)}"
        yield f"{first} 0", everywhere(axis, 0)
        yield f"{first} {leaf.value.shape[axis] - 1}, the last", everywhere(axis, -1)
        yield f"{word(letter, True)} read {leaf.name} in reverse order", lambda a, axis=axis: np.flip(a, axis).copy()
        for tile in (tile for tile in TILES if tile < leaf.value.shape[axis]):
            says = f"{word(letter, True)} from {tile} on read {leaf.name} from {word(letter)} 0 on again"
            yield says, repeated(axis, tile)
        yield f"pairs of {word(letter, True)} of {leaf.name} were swapped", partial(_pairs, axis)


def _moved(axis: int, step: int, stays: bool, a: Array) -> Array:
    made = np.roll(a, step, axis=axis)
    end: list[Any] = [slice(None)] * a.ndim
    end[axis] = 0 if step > 0 else -1
    made[tuple(end)] = a[tuple(end)] if stays else 0.0
    return made


def _pairs(axis: int, a: Array) -> Array:
    order = np.arange(a.shape[axis])
    even = len(order) // 2 * 2
    order[:even] = order[:even] ^ 1
    return np.take(a, order, axis)


def _layouts(leaf: Leaf, contract: NumericContract) -> Iterator[tuple[str, Change]]:
    """Two axes exchanged: transposed if they are equally long, otherwise read in the other memory order."""
    if not isinstance(leaf.value, np.ndarray) or leaf.value.dtype.kind == "b":
        return
    shape = leaf.value.shape
    for i in range(len(shape)):
        for j in range(i + 1, len(shape)):
            if min(shape[i], shape[j]) < 2:
                continue
            pair = f"the axes {leaf.axes[i] or i} and {leaf.axes[j] or j}"
            if shape[i] == shape[j]:
                yield f"{leaf.name} were transposed in {pair}", lambda a, i=i, j=j: a.swapaxes(i, j).copy()
            else:
                yield (
                    f"{leaf.name} lay in memory with {pair} exchanged",
                    lambda a, i=i, j=j: a.swapaxes(i, j).reshape(a.shape).copy(),
                )


def _formats(leaf: Leaf, contract: NumericContract) -> Iterator[tuple[str, Change]]:
    """An array rounded to a narrower format than the contract declares."""
    if not isinstance(leaf.value, np.ndarray) or leaf.value.dtype.kind != "f":
        return
    for narrow in ("bf16", "fp16", "fp32"):
        if UNIT_ROUNDOFF[narrow] > UNIT_ROUNDOFF[contract.accumulate]:
            yield f"{leaf.name} were rounded to {narrow}", rounded_to(narrow)
