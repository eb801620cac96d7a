"""Find the line of the reference that, changed, gives an implementation's outputs: the reference is run with each change.

A change is told if, in every failing case tried, each wrong element is the changed reference's (`changed_inputs.covered`), in
the first of them also each right one; and if it changes nothing beyond the bounds in cases that the implementation passes. So
a change is not told that agrees with one case by chance. The reference's files are not written: the code of a function is
exchanged for the time of one call.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from types import FunctionType
from typing import Any

import numpy as np

from ssmspec_ref.contract import FLOAT64, Capability, NumericContract

from ...adapters import reference
from ...judge.clock import Clock
from ...run.calls import bench_of
from ...suite.expected import Expected, unbounded
from ...suite.specification import Specification
from ..changed_inputs import WHOLE, agreement, close
from ..observe import Observation, judged
from .edits import STEPS, Edit, edits, guarded
from .executed import executed

SECONDS = 15.0
"""The time of the search."""
TOLD = 2
"""Changes to report."""
TURNS = 20_000
"""Turns of a loop that ends by a condition, before a changed one is taken to be endless."""


@dataclass
class Turns:
    """Counts the turns of loops in one run."""

    left: int = TURNS

    def __call__(self) -> bool:
        self.left -= 1
        if self.left < 0:
            raise RecursionError("a loop of the changed reference does not end")
        return True


Way = Callable[[Observation], list[Expected]]
"""A way to compute the outputs of a case: the reference, or one of its second derivations."""


def changed_lines(
    specification: Specification,
    contract: NumericContract,
    failing: Sequence[Observation],
    passing: Sequence[Observation],
    clock: Clock,
) -> list[str]:
    """The first changes of a line with which the reference, or a second derivation of it, gives the outputs of all cases.

    What the first failing case runs is changed.
    """
    seen: set[str] = set()
    for way in ways(specification, contract):
        if not all(_right(way, contract, one) for one in (*failing, *passing)):
            continue
        if told := list(islice(_changed(way, contract, failing, passing, clock, seen), TOLD)):
            return told
    return []


def ways(specification: Specification, contract: NumericContract) -> Iterator[Way]:
    """The reference, then its second derivations of this operation in float64."""
    yield partial(_referred, specification, contract)
    for subject in reference.adapter().subjects:
        capability = subject.capabilities.get(specification.operation)
        if capability is not None and capability.contract.accumulate == FLOAT64.accumulate:
            yield partial(_derived, specification, capability)


def _referred(specification: Specification, contract: NumericContract, one: Observation) -> list[Expected]:
    with unbounded():
        return specification.expected(one.arguments, contract, None)


def _derived(specification: Specification, capability: Capability, one: Observation) -> list[Expected]:
    """The outputs of a second derivation, with the bounds that the case has."""
    answer = bench_of(capability).start(specification, capability, one.arguments, False, False)()
    return [replace(want, value=came) for want, came in zip(one.expected, answer.came.outputs, strict=True)]


def _changed(
    way: Way,
    contract: NumericContract,
    failing: Sequence[Observation],
    passing: Sequence[Observation],
    clock: Clock,
    seen: set[str],
) -> Iterator[str]:
    """The first change of each line that gives the outputs of all cases."""
    first, lines = failing[0], set[str]()
    functions = executed(lambda: way(first))
    failing = sorted(failing, key=partial(_seconds, way))
    turns = Turns()
    with ending([(one.function, code) for one in functions if (code := guarded(one)) is not None], turns):
        for edit in (edit for one in functions for edit in edits(one)):
            if clock.ended:
                return
            line = edit.says.partition(" read `")[0]
            if edit.says in seen or line in lines:
                continue
            seen.add(edit.says)
            with exchanged(edit):
                if not all(_covered(way, contract, one, turns) for one in failing):
                    continue
                if _covered(way, contract, first, turns) > WHOLE and all(_same(way, contract, one, turns) for one in passing):
                    lines.add(line)
                    yield edit.says


def _right(way: Way, contract: NumericContract, one: Observation) -> bool:
    """Whether a way takes this case, and gives what is expected; second derivations do not take every option, nor pools."""
    return _same(way, contract, one, Turns())


def _seconds(way: Way, one: Observation) -> float:
    """The work that the outputs of a case take."""
    began = time.process_time()
    way(one)
    return time.process_time() - began


def _covered(way: Way, contract: NumericContract, one: Observation, turns: Turns) -> float:
    made = _made(way, one, turns)
    return 0.0 if made is None else agreement(contract, one, made)


def _same(way: Way, contract: NumericContract, one: Observation, turns: Turns) -> bool:
    """Whether the changed reference's outputs of a case that passes are within their bounds too."""
    made = _made(way, one, turns)
    if made is None:
        return False
    for want, other in zip(one.expected, made, strict=True):
        with np.errstate(invalid="ignore", over="ignore"):
            equal = (np.abs(other.value - want.value) <= close(want, other, contract)) | (other.value == want.value)
        if not (equal | ~judged(want)).all():
            return False
    return True


def _made(way: Way, one: Observation, turns: Turns) -> list[Expected] | None:
    """None for inputs with which the changed reference fails, or gives outputs of another form."""
    turns.left = TURNS
    with suppress(Exception), np.errstate(all="ignore"):
        made = way(one)
        shapes = [each.value.shape for each in one.expected]
        if [getattr(each.value, "shape", None) for each in made] == shapes and all(_numbers(each) for each in made):
            return made
    return None


def _numbers(each: Expected) -> bool:
    return each.value.dtype.kind in "biuf"


@contextmanager
def exchanged(edit: Edit) -> Iterator[None]:
    own, edit.function.__code__ = edit.function.__code__, edit.code
    try:
        yield
    finally:
        edit.function.__code__ = own


@contextmanager
def ending(functions: Sequence[tuple[FunctionType, Any]], turns: Callable[[], bool]) -> Iterator[None]:
    """In the block, loops of these functions end: they ask `turns`."""
    own = [(function, function.__code__) for function, _ in functions]
    for function, code in functions:
        function.__globals__[STEPS], function.__code__ = turns, code
    try:
        yield
    finally:
        for function, code in own:
            function.__code__ = code
            function.__globals__.pop(STEPS, None)
