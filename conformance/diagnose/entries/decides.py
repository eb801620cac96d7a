"""Which entry of the integers and masks decides: make all others as simple as the failure allows, then change single ones.

First every entry goes to its simplest value, in halves, as long as the case fails. What must stay is shown; the case passes
if any one of these entries is at its simplest value. If none must stay, single other values are tried. Numbers of tokens or
nodes are tried over their range, on a larger case if that fails too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from ssmspec_ref.contract import Capability, Verdict
from ssmspec_ref.errors import SpecError
from ssmspec_ref.shapes import Array

from ...judge.clock import Clock
from ...judge.shrink import within
from ...judge.verdict import compare
from ...run.calls import bench_of
from ...run.sessions import opened
from ...suite.called import Arguments
from ...suite.specification import Specification
from ..extent import ordinal
from ..observe import Observation, judged, observe
from .filled import filled
from .listed import listed
from .padding import unpadded
from .vectors import Values, Vector, vectors

CALLS, SECONDS = 300, 8.0
"""Calls and time of one search."""
SINGLE, SHOWN = 32, 2
"""Single changes to try of an input whose entries are all simple, and changes to report of an input."""
PARTS = 8
"""Ranges of numbers to list."""
FEW = 3
"""Nodes of a tree that hang elsewhere than on the node before, to list instead of the whole tree."""
WIDER, LONGEST = 13, 24
"""Tokens of the larger case on which counts are tried, and counts to try."""


@dataclass
class Tries:
    """Calls of one implementation on changed inputs of a case, within a budget. A change after which none of the values that
    were wrong is compared any more shows nothing."""

    specification: Specification
    capability: Capability
    found: Observation
    clock: Clock = field(default_factory=lambda: Clock(SECONDS))
    left: int = CALLS

    @property
    def ended(self) -> bool:
        return self.left <= 0 or self.clock.ended

    def begun(self) -> Arguments | None:
        """The inputs of the case with numbers also where none are read; None if it passes with them, or raises."""
        try:
            given = filled(self.found.case.operation, self.found.arguments, self.capability.contract)
        except SpecError:
            return None
        return given if self.wrong(lambda: given) else None

    def fails(self, vector: Vector, arguments: Arguments, values: Values) -> bool | None:
        """Whether the case fails with other entries; None if it cannot be told."""
        return self.wrong(lambda: vector.made(arguments, values))

    def wrong(self, made: Callable[[], Arguments]) -> bool | None:
        """Whether a call with these inputs fails; None if it cannot be told."""
        if self.ended:
            return None
        self.left -= 1
        contract = self.capability.contract
        try:
            given = made()
            with np.errstate(all="ignore"):
                expected = self.specification.expected(given, contract, None)
            answer = bench_of(self.capability).start(self.specification, self.capability, given, False, False)()
            if answer.failed or len(answer.came.outputs) != len(expected):
                return None
            verdict = compare(expected, answer.came.outputs, contract)
        except Exception:  # values that the reference refuses, or that have no meaning in it
            return None
        if verdict.verdict is Verdict.FAIL:
            return True if verdict.kind in ("bound", "nan") else None
        still = self.found.passes or any(
            judged(want).shape == self.found.wrong(number).shape and (judged(want) & self.found.wrong(number)).any()
            for number, want in enumerate(expected)
        )
        return False if verdict.verdict is Verdict.PASS and still else None


def decides(specification: Specification, capability: Capability, found: Observation, at: dict[str, int]) -> str:
    """The entries that decide whether the case fails, in words; "" if the operation has none, or none decides. `at` is the
    first wrong place, by axis."""
    if opened(found.case.operation) or found.passes:
        return ""
    tries, told = Tries(specification, capability, found), list[str]()
    arguments = tries.begun()
    every = [] if arguments is None else list(vectors(found.case, arguments))
    if arguments is None:
        return ""
    free: list[str] = []
    kept: list[tuple[Vector, Values]] = []
    for vector in every:
        if vector.counts:
            continue
        values = simplest(tries, vector, arguments, at.get("b", 0))
        if values != vector.now:
            arguments = vector.made(arguments, values)
        kept.append((vector, values))
    for vector, values in kept:
        must = [n for n, (value, simple) in enumerate(zip(values, vector.simple, strict=True)) if value != simple]
        said = _must(tries, vector, arguments, values, must) if must else _single(tries, vector, arguments, values, at)
        if said:
            told.append(said)
        elif not must and values != vector.now:
            free.append(vector.name)
    for vector in vectors(found.case, arguments):
        if vector.counts and (said := counted(tries, vector, arguments, at, "path" in free)):
            told.append(said)
    if said := _padded(tries, arguments, free):
        told.append(said)
    if free:
        do = "does" if len(free) == 1 else "do"
        told.append(
            f"{' and '.join(free)} {do} not decide: it fails also with {SIMPLEST.get(free[0], 'the simplest values')}"
        )
    return "; ".join(told)


def _padded(tries: Tries, arguments: Arguments, free: list[str]) -> str:
    """Whether rows that are padding decide. If they do, that the slots of the other rows do not is told beside it."""
    found = unpadded(tries.found.case, arguments)
    if found is None or tries.wrong(lambda: found[1]) is not False:
        return ""
    said = f"{found[0]} padding, and it passes if no row is padding"
    if SLOTS not in free:
        return said
    free.remove(SLOTS)
    return f"{said}; with every other row in its own slot it fails"


SLOTS = "slots"
"""The input with the slots of the rows."""
BESIDE = ("path",)
"""Inputs of which an entry at its simplest value may decide too."""
SIMPLEST = {
    "live": "every token live", "fresh": "no row fresh", "parents": "a chain", "ancestors": "a chain",
    "path": "the path 0 1 2 ..", "slots": "each row in its own slot, with the same padding", "tokens": "equal tokens",
    "history": "equal tokens", "prompt": "equal tokens", "output": "equal tokens", "choice": "equal choices",
}  # fmt: skip
"""What an input is with all entries at their simplest values."""


def simplest(tries: Tries, vector: Vector, arguments: Arguments, row: int) -> Values:
    """The entries with as many as possible at their simplest values, so that the case still fails; those of other rows than
    the wrong one go first."""
    values = list(vector.now)

    def reduced(numbers: Sequence[int]) -> None:
        numbers = [n for n in numbers if values[n] != vector.simple[n]]
        if not numbers or tries.ended:
            return
        before = [values[n] for n in numbers]
        for n in numbers:
            values[n] = vector.simple[n]
        if tries.fails(vector, arguments, tuple(values)):
            return
        for n, value in zip(numbers, before, strict=True):
            values[n] = value
        if len(numbers) > 1:
            reduced(numbers[len(numbers) // 2 :])  # the later ones first: what must stay comes early
            reduced(numbers[: len(numbers) // 2])

    others = [n for n in range(len(values)) if vector.rows[n] != row]
    own = [n for n in range(len(values)) if vector.rows[n] == row]
    for numbers in (others, own, others, own):  # what had to stay beside an entry that went later may go
        reduced(numbers)
    return tuple(values)


def _must(tries: Tries, vector: Vector, arguments: Arguments, values: Values, must: Sequence[int]) -> str:
    """What remains of an input, and which of it decides."""
    passing = [n for n in must if tries.fails(vector, arguments, _with(values, n, vector.simple[n])) is False]
    if not passing:
        return ""
    row = vector.rows[passing[0]]
    said = [vector.says(n, vector.simple[n]) for n in passing[:SHOWN]]
    more = f" (or by any of {len(passing) - SHOWN} more)" if len(passing) > SHOWN else ""
    if vector.name in BESIDE:
        beside = [n for n in range(len(values)) if n not in must and vector.rows[n] == row][:LONGEST]
        changes = [(n, value) for n in beside for value in list(vector.others(values, n))[:1]]
        said += [vector.says(*one) for one in changes if tries.fails(vector, arguments, _with(values, *one)) is False][:1]
    return f"{_row(vector, values, row, vector.places[passing[0]])} fails, and passes if {', or if '.join(said)}{more}"


def _row(vector: Vector, values: Values, row: int, place: int) -> str:
    array = vector.array(values)
    if vector.name in ("parents", "ancestors"):
        hung = [n for n in range(len(values)) if vector.rows[n] == row and values[n] != vector.simple[n]]
        said = [f"node {vector.places[n]} hangs on node {values[n]}" for n in hung]
        if len(hung) <= FEW:
            chain = f"a chain in which {' and '.join(said)}" if hung else "a chain"
            return f"the case whose row {row} is {chain}" if max(vector.rows) > 0 else chain
    if vector.name == "slots":
        return "slots read " + " ".join(map(str, array[0])) + ", written " + " ".join(map(str, array[1]))
    named = "parents" if vector.name == "ancestors" else vector.name
    return listed(named, array if array.ndim == 1 else array[row], place)


def _single(tries: Tries, vector: Vector, arguments: Arguments, values: Values, at: dict[str, int]) -> str:
    """The single changes with which the case passes, if few of those tried do: else the entries have no part in it."""
    row, place = at.get("b", 0), at.get("t", 0)
    near = sorted(range(len(values)), key=lambda n: (vector.rows[n] != row, abs(vector.places[n] - place)))
    changes = [(n, value) for n in near for value in list(vector.others(values, n))[:2] if value != values[n]][:SINGLE]
    known = [(one, tries.fails(vector, arguments, _with(values, *one))) for one in changes]
    passing = [one for one, fails in known if fails is False]
    if not passing:
        return ""
    if len(passing) > SHOWN and 2 * len(passing) > len(changes):
        n = passing[0][0]
        shown = _row(vector, values, vector.rows[n], vector.places[n])
        return f"{shown} fails, and passes with {len(passing)} of {len(changes)} single changes of it"
    said = [vector.says(*one) for one in passing[:SHOWN]]
    more = f" (or by {len(passing) - SHOWN} more of {len(changes)} single changes)" if len(passing) > SHOWN else ""
    n = passing[0][0]
    shown = _row(vector, values, vector.rows[n], vector.places[n])
    return f"{shown} fails, and passes if {', or if '.join(said)}{more}"


def counted(tries: Tries, vector: Vector, arguments: Arguments, at: dict[str, int], straight: bool) -> str:
    """The counts in the wrong row with which the case fails, and those with which it passes; `straight` says that it fails
    on the path 0 1 2 .. too, which the larger case then gets."""
    best, _ = _counts(tries, vector, arguments, at.get("b", 0))
    case, limits = tries.found.case, tries.capability.limits
    size = min(WIDER, limits.sizes.get("t", (1, WIDER))[1])
    if "t" in case.sizes and best and case.sizes["t"] < size:
        wide = replace(case, sizes={**case.sizes, "t": size})
        if tries.specification.ok(wide.sizes) and within(tries.specification, tries.capability, wide):
            found = observe(tries.specification, tries.capability, wide)
            given = filled(wide.operation, found.arguments, tries.capability.contract) if found else ()
            for path in [one for one in vectors(wide, given) if one.name == "path"] if found and straight else []:
                given = path.made(given, path.simple)
            longer = [one for one in vectors(wide, given) if one.name == vector.name] if found else []
            if found and longer:
                other = replace(tries, found=found)
                said, bad = _counts(other, longer[0], given, at.get("b", 0), False)
                tries.left = other.left
                best = said if vector.now[_entry(vector, at.get("b", 0))] in bad else best
    return best


def _entry(vector: Vector, row: int) -> int:
    return vector.rows.index(row) if row in vector.rows else 0


def _counts(tries: Tries, vector: Vector, arguments: Arguments, row: int, compared: bool = True) -> tuple[str, Sequence[int]]:
    """Which counts fail and which pass, in words, and those that fail; "" if all do, or none."""
    n = _entry(vector, row)
    values = vector.now
    every = sorted([*list(vector.others(values, n)), values[n]], key=lambda v: (abs(v - values[n]), v))[:LONGEST]
    fate: dict[int, bool] = {}
    for value in every:
        fails = True if compared and value == values[n] else tries.fails(vector, arguments, _with(values, n, value))
        if fails is not None:
            fate[value] = fails
    bad, good = (sorted(v for v, fails in fate.items() if fails is one) for one in (True, False))
    if not bad or not good:
        return "", ()
    return f"{vector.name} in row {vector.rows[n]}: fails with {ranges(bad)}, passes with {ranges(good)}", bad


def ranges(numbers: Sequence[int]) -> str:
    """1 to 4, 7, 9; or every 3rd from 3 to 12"""
    steps = {after - before for before, after in pairwise(numbers)}
    if len(numbers) > 2 and len(steps) == 1 and (step := steps.pop()) > 1:
        return f"every {ordinal(step)} from {numbers[0]} to {numbers[-1]}"
    breaks = [n for n, (before, after) in enumerate(pairwise(numbers), 1) if after != before + 1]
    parts: list[Array] = np.split(np.asarray(numbers), breaks)
    said = [f"{p[0]} to {p[-1]}" if len(p) > 2 else ", ".join(map(str, p)) for p in parts]
    return ", ".join(said[:PARTS]) + ", .." * (len(said) > PARTS)


def _with(values: Values, n: int, value: int) -> Values:
    return (*values[:n], value, *values[n + 1 :])
