"""Find the change of the inputs that explains a failure: run the reference on inputs with one change, and compare.

A change explains a failure if, in every case tried, each wrong element equals the reference's value for the changed inputs,
within that computation's own bound. Elements that the change would alter but that are right count against it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from ssmspec_ref.contract import UNIT_ROUNDOFF, NumericContract
from ssmspec_ref.shapes import Array

from ..judge.draw import stored
from ..run.sessions import opened
from ..suite.specification import Arguments, Expected, Specification
from .extent import around, extent, word
from .leaves import Change, Leaf, changed, leaves
from .mistakes.every import Finished, mistakes
from .mistakes.misread import misread
from .observe import Observation, judged

MOST = 3
"""Explanations to report."""
WORK = 2_000_000
"""Budget of a search: elements of a case times changes tried on it."""
SEVERAL = 60
"""The cost of the reference for several windows, or for a layer, relative to one call."""
LEAST, LIMIT = 240, 600
"""Changes tried on a case, whatever its size."""
LEAST_COVERED = 0.3
"""A change that would alter more than three times what is wrong is no explanation: what is wrong agrees with it by chance."""
LEFT, TINY = 0.25, 1e-300
"""The fraction of the error that an explanation may leave, as a root mean square; and the smallest tolerance to divide by."""
IN_PART = 0.9
"""What a change counts for that explains all in the rows, heads and so on that are wrong, and would alter others too."""
WHOLE, FEW = 0.99, 5
"""An explanation that covers more than `WHOLE` changes nothing that is right; it may fail one of `FEW` cases."""
TILES = (8, 16, 32, 64)
"""Sizes of a tile whose number an implementation may leave out of an offset."""
CUT = (1.4, 1.44, 1.443, 1.442, 1.4427, 1.4426)
"""Rounded values of log2(e), as used in kernels that compute exp by exp2."""


class Among(Enum):
    """The elements that may count against a change, if it would alter them: all, those of outputs that have wrong elements,
    or those in the rows, tokens, heads and so on that have."""

    ALL, OUTPUTS, PLACES = range(3)


@dataclass(frozen=True)
class Explanation:
    """A change of the inputs in words ("B were 0"); `covers`: how much of what it would alter is wrong in this way; `misses`:
    failing cases that it does not explain."""

    says: str
    covers: float
    order: int
    misses: int = 0


def explain(
    specification: Specification, contract: NumericContract, first: Observation, others: list[Observation]
) -> list[Explanation]:
    """The changes that explain every observation, those with the largest coverage first."""
    found = []
    for order, (says, change) in enumerate(candidates(specification, contract, first)):
        covers = covered(specification, contract, first, change)
        if narrowed := 0 < covers <= WHOLE:
            covers, says = _narrowed(specification, contract, first, change, covers, says)
        if covers < LEAST_COVERED:
            continue
        misses, least = _misses(specification, contract, others, change)
        if misses <= (covers > WHOLE):
            but = f" (but in 1 of {len(others) + 1} failing cases)" if misses else ""
            if not narrowed and least <= WHOLE < covers:
                covers, but = IN_PART, f"{but} (in some cases it would alter right values too)"
            found.append(Explanation(says + but, covers, order, misses))
    if any(one.covers > WHOLE and not one.misses for one in found):
        found = [one for one in found if not one.misses]
    found.sort(key=lambda one: (-round(one.covers, 2), one.order))
    return [one for one in found if one.covers > 0.5 * found[0].covers][:MOST] if found else []


def _narrowed(
    specification: Specification,
    contract: NumericContract,
    first: Observation,
    change: Callable[[Arguments], Arguments],
    covers: float,
    says: str,
) -> tuple[float, str]:
    """A change that would alter right elements too, told of the outputs, or of the places, in which it alters none."""
    if covered(specification, contract, first, change, Among.OUTPUTS) > WHOLE:
        return 1.0, f"{says}, for {_wrong_names(first)} alone"
    where = _part(first)
    rounds = all(first.expected[number].bound.any() for number in first.beyond)  # moved values meet others by chance
    if where and rounds and covered(specification, contract, first, change, Among.PLACES) > WHOLE:
        return IN_PART, f"{says}, only at {where}"
    return covers, says


def _part(one: Observation) -> str:
    """Where the wrong elements of the first wrong output are, in words; "" for few, or if every row, head .. has some."""
    number = one.beyond[0]
    places, share, _ = extent(one, number).rpartition(" (")
    return places.replace("only ", "") if share and one.wrong(number).sum() >= FEW else ""


def _wrong_names(one: Observation) -> str:
    """The outputs that have wrong elements, without the numbers of windows."""
    return " and ".join(dict.fromkeys(one.expected[number].name.partition(" ")[0] for number in one.beyond))


def _misses(
    specification: Specification,
    contract: NumericContract,
    others: list[Observation],
    change: Callable[[Arguments], Arguments],
) -> tuple[int, float]:
    """How many other cases a change does not explain; one of `FEW` or more may have another error too. A case says
    nothing with which it cannot be made, or for which it gives numbers that are not finite, as when a state is divided by a
    decay that is almost 0; no more than half may be such. And the least coverage of those that it explains."""
    mute = misses = 0
    least = 1.0
    for other in others:
        covers = covered(specification, contract, other, change)
        least = min(least, covers or 1.0)
        if not covers:
            if not _finite(specification, contract, other, change):
                mute += 1
            elif len(others) < FEW or (misses := misses + 1) > 1:
                return len(others), 0.0
    return (misses if 2 * mute <= len(others) else len(others)), least


def _finite(
    specification: Specification, contract: NumericContract, one: Observation, change: Callable[[Arguments], Arguments]
) -> bool:
    try:
        with np.errstate(all="ignore"):
            made = reference(specification, contract, one.arguments, change)
    except Exception:  # as in `covered`
        return False
    pairs = zip(one.expected, made, strict=False)
    return all((np.isfinite(other.value) | ~np.isfinite(want.value)).all() for want, other in pairs if not want.whole)


def candidates(
    specification: Specification, contract: NumericContract, first: Observation
) -> Iterator[tuple[str, Callable[[Arguments], Arguments]]]:
    """The changes to try on a case, as many as its size allows."""
    axes = {"S": next((e.axes for e in first.expected if e.recurrent), "")}
    several = SEVERAL if opened(specification.operation) else 1
    most = min(LIMIT, max(LEAST, WORK // several // max(1, first.case.size())))
    return islice(_changes(specification.operation, first.arguments, contract, axes), most)


def covered(
    specification: Specification,
    contract: NumericContract,
    observation: Observation,
    change: Callable[[Arguments], Arguments],
    among: Among = Among.ALL,
) -> float:
    """The fraction of the elements altered by a change that are wrong in this way; 0 if a wrong element is not explained."""
    try:
        with np.errstate(all="ignore"):
            made = reference(specification, contract, observation.arguments, change)
    except Exception:  # inputs that the reference refuses, or that a change cannot be made of
        return 0.0
    return agreement(contract, observation, made, among)


def agreement(contract: NumericContract, observation: Observation, made: list[Expected], among: Among = Among.ALL) -> float:
    """As `covered`, of outputs that the reference gave with a change."""
    altered = agrees = valued = unread = 0
    for number, (want, other) in enumerate(zip(observation.expected, made, strict=False)):
        came = observation.came[number].astype(np.float64)
        if other.value.shape != came.shape:
            return 0.0
        tolerance = close(want, other, contract)
        wrong = observation.wrong(number)
        if among is not Among.ALL and not wrong.any():
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            off, error = (np.abs(came - value) / np.maximum(tolerance, TINY) for value in (other.value, want.value))
            apart = judged(want) & (np.abs(other.value - want.value) > tolerance)
            free = wrong & ~judged(other) & ~(off <= 1)  # a change after which nobody reads a place explains what is there
            left, had = (np.sum(np.square(each[wrong & ~free])) for each in (off, error))
        if not (off[wrong & ~free] <= 1).all() or left > LEFT**2 * had:
            return 0.0
        unread, valued = unread + int(free.sum()), valued + int((wrong & ~free).sum())
        apart &= around(wrong) if among is Among.PLACES else np.True_
        altered, agrees = altered + int((apart | wrong).sum()), agrees + int(wrong.sum())
    return agrees / altered if valued > unread else 0.0


def reference(
    specification: Specification, contract: NumericContract, arguments: Arguments, change: Callable[[Arguments], Arguments]
) -> list[Expected]:
    """The outputs of the reference with a change of the inputs. Raises: what the reference, or a record, raises."""
    made = specification.expected(change(arguments), contract, None)
    return change.added(arguments, made) if isinstance(change, Finished) else made


def close(want: Expected, other: Expected, contract: NumericContract) -> Array:
    """How far the result may be from another computation: the bounds of both, plus a rounding if one of them is exact."""
    u = 0.0 if want.whole else UNIT_ROUNDOFF[contract.io]
    rounding = 4 * u * (np.abs(other.value) + np.abs(want.value))
    with np.errstate(over="ignore"):  # a bound that is not finite allows everything
        sums: Array = 2 * np.maximum(np.nan_to_num(want.bound), np.nan_to_num(other.bound)) + rounding
    return sums


def _changes(
    operation: str, arguments: Arguments, contract: NumericContract, axes: dict[str, str]
) -> Iterator[tuple[str, Callable[[Arguments], Arguments]]]:
    """Every change to try, in words and as a function of the arguments; the likeliest kinds first."""
    every = leaves(operation, arguments, axes)
    kinds = (_counts, _switches, _whole, _shifts, _layouts, _formats)
    yield from _together(operation, every)
    yield from mistakes(operation, every)
    for leaf, says, change in misread(every):
        yield says, _applied(leaf, change)
    for kind in kinds:
        for leaf in every:
            for says, change in kind(leaf, contract):
                yield says, _applied(leaf, change)


def _applied(leaf: Leaf, change: Change) -> Callable[[Arguments], Arguments]:
    return lambda arguments: changed(arguments, (leaf, change))


def _together(operation: str, every: list[Leaf]) -> Iterator[tuple[str, Callable[[Arguments], Arguments]]]:
    """Changes of several inputs at once: the groups of heads."""
    grouped, heads, groups = _groups(every)
    if 1 < groups <= heads:
        for says, choose in GROUPS.items():
            yield says, _of_groups(operation, choose, [leaf.name for leaf in grouped])
            for leaf in grouped:
                yield f"{says}, for {leaf.name} alone", _of_groups(operation, choose, [leaf.name])
    if 1 < groups < heads:
        for leaf in every:
            if "h" in leaf.axes and isinstance(leaf.value, np.ndarray):
                for says, read in HEADS.items():
                    yield f"every head read {leaf.name} of {says}", _of_heads(operation, leaf, read)


GROUPS: dict[str, Callable[[int, int], Array]] = {
    "head h read group h mod g (groups tiled instead of repeated)": lambda heads, groups: np.arange(heads) % groups,
    "head h read group h // g, with g groups": lambda heads, groups: np.arange(heads) // groups % groups,
    "head h read group h // g, with g groups, or the last": lambda heads, groups: np.minimum(
        np.arange(heads) // groups, groups - 1
    ),
    "every head read group 0": lambda heads, groups: np.zeros(heads, dtype=int),
    "head h read the group of head h + 1": lambda heads, groups: np.roll(np.arange(heads) // (heads // groups), -1),
    "head h read the group of head h - 1": lambda heads, groups: np.roll(np.arange(heads) // (heads // groups), 1),
}
"""The group that each head reads, from the numbers of heads and groups."""


def _groups(every: list[Leaf]) -> tuple[list[Leaf], int, int]:
    """The inputs with a group axis, the number of heads and of groups; 0 if there are none, or if they disagree."""
    grouped = [leaf for leaf in every if "g" in leaf.axes]
    heads = next((leaf.value.shape[leaf.axes.index("h")] for leaf in every if "h" in leaf.axes), 0)
    counts = {leaf.value.shape[leaf.axes.index("g")] for leaf in grouped}
    return grouped, heads, counts.pop() if len(counts) == 1 else 0


def _of_groups(operation: str, choose: Callable[[int, int], Array], some: list[str]) -> Callable[[Arguments], Arguments]:
    """Choose the group of each head for some inputs; the others use the right one."""

    def change(arguments: Arguments) -> Arguments:
        grouped, heads, groups = _groups(leaves(operation, arguments))
        own = np.arange(heads) // (heads // groups)
        chosen = [(leaf, choose(heads, groups) if leaf.name in some else own, leaf.axes.index("g")) for leaf in grouped]
        return changed(arguments, *((leaf, partial(np.take, indices=choice, axis=axis)) for leaf, choice, axis in chosen))

    return change


HEADS: dict[str, Callable[[int, int], Array]] = {
    "the first head of its group": lambda heads, groups: np.arange(heads) // (heads // groups) * (heads // groups),
    "the head with the number of its group": lambda heads, groups: np.arange(heads) // (heads // groups),
}
"""The head that each head reads, from the numbers of heads and groups."""


def _of_heads(operation: str, leaf: Leaf, read: Callable[[int, int], Array]) -> Callable[[Arguments], Arguments]:
    def change(arguments: Arguments) -> Arguments:
        _, heads, groups = _groups(leaves(operation, arguments))
        return changed(arguments, (leaf, partial(np.take, indices=read(heads, groups), axis=leaf.axes.index("h"))))

    return change


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
        yield f"every entry of {name} were true (no mask)", np.ones_like
        yield f"{name} were inverted", np.logical_not
        if leaf.value.ndim == 3:
            yield "the tree were a chain (every node sees all nodes before it)", _as_chain
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
        yield f"{name} were 0", np.zeros_like
        yield f"{name} were the largest of all rows", lambda a: np.full_like(a, a.max(initial=0))
    if len(leaf.value) > 1 and leaf.axes[:1] == ("b",):
        yield f"every row read {name} of row 0", lambda a: np.broadcast_to(a[:1], a.shape).copy()
        yield f"row i read {name} of row i - 1", lambda a: np.roll(a, 1, axis=0)
        yield f"row i read {name} of row i + 1", lambda a: np.roll(a, -1, axis=0)
        yield f"rows read {name} in reverse order", lambda a: a[::-1].copy()


def _as_chain(a: Array) -> Array:
    live = np.einsum("btt -> bt", a)
    return np.tri(a.shape[1], dtype=bool) & live[:, None] & live[:, :, None]


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
    yield f"{name} were 0", np.zeros_like
    yield f"{name} were 1", np.ones_like
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
            yield f"{says} (wrapped)", lambda a, axis=axis, step=step: np.roll(a, step, axis=axis)
            yield f"{says} (0 at the end)", lambda a, axis=axis, step=step: _moved(a, axis, step, False)
            yield f"{says} (the end stays)", lambda a, axis=axis, step=step: _moved(a, axis, step, True)
        first = f"every {word(letter)} read {leaf.name} of {word(letter)}"
        yield f"{first} 0", lambda a, axis=axis: np.broadcast_to(np.take(a, [0], axis), a.shape).copy()
        yield (
            f"{first} {leaf.value.shape[axis] - 1}, the last",
            lambda a, axis=axis: np.broadcast_to(np.take(a, [-1], axis), a.shape).copy(),
        )
        yield f"{word(letter, True)} read {leaf.name} in reverse order", lambda a, axis=axis: np.flip(a, axis).copy()
        for tile in (tile for tile in TILES if tile < leaf.value.shape[axis]):
            says = f"{word(letter, True)} from {tile} on read {leaf.name} from {word(letter)} 0 on again"
            yield says, lambda a, axis=axis, tile=tile: np.take(a, np.arange(a.shape[axis]) % tile, axis)
        yield f"pairs of {word(letter, True)} of {leaf.name} were swapped", lambda a, axis=axis: _pairs(a, axis)


def _moved(a: Array, axis: int, step: int, stays: bool) -> Array:
    made = np.roll(a, step, axis=axis)
    end: list[Any] = [slice(None)] * a.ndim
    end[axis] = 0 if step > 0 else -1
    made[tuple(end)] = a[tuple(end)] if stays else 0.0
    return made


def _pairs(a: Array, axis: int) -> Array:
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
            yield f"{leaf.name} were rounded to {narrow}", lambda a, narrow=narrow: stored(a, narrow)
