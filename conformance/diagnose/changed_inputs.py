"""Find the change of the inputs that explains a failure: run the reference on inputs with one change, and compare.

A change explains a failure if, in every case tried, each wrong element equals the reference's value for the changed inputs,
within that computation's own bound. Elements that the change would alter but that are right count against it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain, islice

import numpy as np

from ssmspec_ref.contract import UNIT_ROUNDOFF, NumericContract
from ssmspec_ref.shapes import Array

from ..run.sessions import opened
from ..suite.called import Arguments
from ..suite.expected import Expected
from ..suite.specification import Specification
from .extent import around, extent
from .leaves import Change, Leaf, changed, leaves
from .mistakes.every import Finished, mistakes
from .mistakes.groups import of_groups
from .mistakes.misread import misread
from .mistakes.one_input import of_one_input
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
            but = f" (explains {len(others)} of {len(others) + 1} failing cases)" if misses else ""
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
    yield from of_groups(operation, every)
    yield from mistakes(operation, every)
    for leaf, says, change in chain(misread(every), of_one_input(every, contract)):
        yield says, _applied(leaf, change)


def _applied(leaf: Leaf, change: Change) -> Callable[[Arguments], Arguments]:
    return lambda arguments: changed(arguments, (leaf, change))
