"""Several bugs in one operation: causes that each explain some of the failing cases, but not all.

One bug has one cause, and every failing case shows it. Two bugs hide each other: no single change explains a case that has
both. So the failing cases are varied, one option, size or family at a time: if a variation removes what one bug needs, the
other remains and can be named. If the other bug shows in no case alone, it is searched for in what remains after the
first: the reference then computes with the change of the first.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ssmspec_ref.contract import Capability, NumericContract

from ..cases import Case
from ..judge.shrink import within
from ..suite.called import Arguments
from ..suite.specification import Specification
from .changed_inputs import candidates, covered, reference
from .changed_outputs import MANY, patterns
from .leaves import leaves
from .observe import Observation, observe

ORIGINAL, WIDE, VARIED = 12, 2, 40
"""Failing cases to call, how many of them to vary, and variations to call."""
CAPS = (2, 3, 4)
"""Longest axis of the cases that are varied."""
SEARCHED, AFTER = 5, 2
"""Variations whose cause is searched, and cases of which it is searched after another cause."""
WRONG = 4
"""Fewest wrong elements of a case: with fewer many causes agree by chance."""
NAMES = 3
"""Names of one cause to keep."""
FEWEST, AMONG_FEW = 2, 8
"""Cases that a cause must explain and that the others do not; and where the wrong values are few different ones, as tokens
and probabilities of 0 and 1 are, which agree by chance."""
COVERS, NEARLY_ALL = 0.5, 0.9
"""The fraction of the elements altered by a change that must be wrong in this way; and where they have few values."""
FIGURES = re.compile(r"-?\d[\d.e+-]*((,| and) -?\d[\d.e+-]*)*(, \.\.)?")
WEAK = re.compile(r" is a (bf16|fp16|fp32) number")
"""A pattern that small numbers, such as tokens, have anyway."""
MOVED = re.compile(r" what belongs to | are swapped")
"""A pattern that few different values, such as probabilities of 0 and 1, have in many cases."""

Change = Callable[[Arguments], Arguments]


@dataclass(frozen=True)
class Named:
    """A cause in words: a change of the inputs, or patterns in the outputs, by their shapes. `about` are the inputs or the
    outputs: two causes about the same one may be one bug, seen in different cases."""

    says: str
    about: frozenset[str]
    change: Change | None = None
    shapes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Cause:
    """A cause in words, and the cases that it explains. `beside` is another cause that all of them have too, or ""."""

    says: str
    cases: tuple[Case, ...]
    beside: str = ""


@dataclass
class Search:
    """The observations of one operation, and which causes explain them."""

    specification: Specification
    contract: NumericContract

    def explains(self, cause: Named, found: Observation) -> bool:
        if cause.change is not None:
            return covered(self.specification, self.contract, found, cause.change) > _least(found)
        told = self.told(found)
        return bool(told) and all(any(shape(one) in cause.shapes for one in of) for of in told)

    def told(self, found: Observation) -> list[list[str]]:
        """The patterns in each wrong output."""
        every = (patterns(found, number, self.contract) for number in found.beyond)
        chance = (WEAK, MOVED) if len(_values(found)) < MANY else (WEAK,)
        return [[one for one in of if not any(words.search(one) for words in chance)] for of in every]

    def names(self, found: Observation) -> Iterator[Named]:
        """The causes that explain an observation: changes of the inputs or, if there are none, patterns in every output."""
        changes = 0
        for says, change in candidates(self.specification, self.contract, found):
            if changes < NAMES and covered(self.specification, self.contract, found, change) > _least(found):
                changes += 1
                yield Named(f"as if {says}", about(says, found), change)
        told = self.told(found)
        if not changes and told and all(told):
            firsts = [of[0] for of in told]
            outputs = frozenset(f"output {found.expected[number].name}" for number in found.beyond)
            shapes = frozenset(shape(one) for of in told for one in of)
            yield Named("; ".join(dict.fromkeys(firsts)), outputs, shapes=shapes)

    def behind(self, cause: Named, found: Observation) -> Observation | None:
        """An observation against the reference with a change of its inputs; None if nothing is wrong with that."""
        assert cause.change is not None
        try:
            with np.errstate(all="ignore"):
                arguments = cause.change(found.arguments)
                made = reference(self.specification, self.contract, found.arguments, cause.change)
        except Exception:  # the change cannot be made of these inputs
            return None
        if any(one.value.shape != came.shape for one, came in zip(made, found.came, strict=False)):
            return None
        new = replace(found, arguments=arguments, expected=made[: len(found.came)])
        return new if new.beyond else None

    def named(self, every: Iterable[Observation], most: int, known: list[Named]) -> None:
        """Add the causes of observations that none of the known causes explains."""
        for found in every:
            if any(self.explains(cause, found) for cause in known):
                continue
            if most == 0:
                return
            most -= 1
            known += self.names(found)


def shape(says: str) -> str:
    """A pattern without its figures, which differ from case to case."""
    return FIGURES.sub("#", says)


def about(says: str, found: Observation) -> frozenset[str]:
    """The inputs that a change is about. Counts, masks and trees are one: they say together what is read and kept."""
    words = set(re.findall(r"\w+", says))
    named = [leaf for leaf in leaves(found.case.operation, found.arguments) if leaf.name in words]
    floats = {one.name for one in named if isinstance(one.value, np.ndarray) and one.value.dtype.kind == "f"}
    switches = {one.name for one in named if isinstance(one.value, bool | float | tuple) or one.value is None}
    return frozenset(floats | switches or {"groups" if "group" in words else "counts"})


def causes_apart(
    specification: Specification, capability: Capability, smallest: Case, failing: Sequence[Case]
) -> tuple[Cause, ...]:
    """The causes, if there are several; empty if one explains every case, or if they cannot be told apart."""
    search = Search(specification, capability.contract)

    def failed(cases: Iterable[Case]) -> list[Observation]:
        seen = (observe(specification, capability, case) for case in cases)
        wrong = [found for found in seen if found is not None and not found.passes]
        return [found for found in wrong if sum(found.wrong(n).sum() for n in found.beyond) >= WRONG] or wrong

    step = max(1, len(failing) // ORIGINAL)
    wide = sorted(failing, key=_narrow)[:WIDE]
    small = failed(_once(one for case in wide for one in _smaller(specification, capability, case)))
    chosen = [o.case for o in small] + [smallest, *failing[::step][:ORIGINAL]]
    tried = small + failed(case for case in _once(chosen) if case not in [o.case for o in small])
    known: list[Named] = []
    if not tried:
        return ()
    search.named(tried[:1], 1, known)
    if any(all(search.explains(cause, found) for found in tried) for cause in known):
        return ()
    bases = [o.case for o in small[:WIDE]] or wide
    varied = failed(case for case in _variations(specification, capability, bases) if case not in chosen)
    every = [*tried, *varied]
    for found in sorted(varied, key=lambda o: (_share(o), o.case.size()))[:SEARCHED]:
        search.named([found], 1, known)
        if causes := _alone(search, known, every):
            return causes
    return _after(search, known, every) or _in_outputs(search, every)


def _met(search: Search, known: list[Named], every: list[Observation]) -> list[tuple[Named, list[int]]]:
    """Each cause with the observations that it explains, by number; the one that explains most comes first."""
    found = [(cause, [n for n, o in enumerate(every) if search.explains(cause, o)]) for cause in known]
    return sorted(found, key=lambda one: -len(one[1]))


def _alone(search: Search, known: list[Named], every: list[Observation]) -> tuple[Cause, ...]:
    """Two causes, each of which explains cases that the other does not; empty if there are none."""
    met = _met(search, known, every)
    for first, own in met[:1]:
        apart = [(cause, seen) for cause, seen in met[1:] if not cause.about & first.about]
        others = [(len({*seen} - {*own}), len({*own} - {*seen}), cause, seen) for cause, seen in apart]
        for more, fewer, cause, seen in sorted(others, key=lambda one: -one[0])[:1]:
            if min(more, fewer) >= fewest(every):
                return tuple(
                    _cause(one, [every[n] for n in shown if n not in left])
                    for one, shown, left in ((first, own, seen), (cause, seen, own))
                )
    return ()


def _after(search: Search, known: list[Named], every: list[Observation]) -> tuple[Cause, ...]:
    """The cause that explains most, and one that explains what remains after it; empty if there are none."""
    changes = [(cause, own) for cause, own in _met(search, known, every) if cause.change and len(own) >= fewest(every)]
    for first, own in changes[:1]:
        rest = [o for n, o in enumerate(every) if n not in own]
        behind = [new for o in rest if (new := search.behind(first, o)) is not None]
        after: list[Named] = []
        search.named(sorted(behind, key=lambda o: _narrow(o.case)), AFTER, after)
        for cause in after:
            shown = [o for o in behind if search.explains(cause, o)]
            if len(shown) >= fewest(behind) and not cause.about & first.about:
                return _cause(first, [every[n] for n in own]), _cause(cause, shown, first.says)
    return ()


def _in_outputs(search: Search, every: list[Observation]) -> tuple[Cause, ...]:
    """A cause that explains one output wherever it is wrong, and another that explains what remains; or nothing."""
    for base in sorted((o for o in every if len(o.beyond) > 1), key=lambda o: _narrow(o.case))[:1]:
        for number in base.beyond:
            first: list[Named] = []
            search.named([_only(base, number)], 1, first)
            wrong = [o for o in every if number in o.beyond]
            for cause in first:
                shown = [o for o in wrong if search.explains(cause, _only(o, number))]
                if cause.change is None or len(shown) < fewest(wrong) or len(shown) < len(wrong):
                    continue
                behind = [new for o in every if (new := search.behind(cause, o)) is not None]
                after: list[Named] = []
                search.named(sorted(behind, key=lambda o: _narrow(o.case)), AFTER, after)
                for other in after:
                    also = [o for o in behind if search.explains(other, o)]
                    if len(also) >= fewest(behind) and not other.about & cause.about:
                        alone = [o for o in shown if search.explains(cause, o)]
                        first_one = _cause(cause, alone) if alone else _cause(cause, shown, other.says)
                        return first_one, _cause(other, also, cause.says)
    return ()


def fewest(found: Sequence[Observation]) -> int:
    """How many cases a cause must explain among these."""
    few = sum(len(_values(one)) < MANY for one in found)
    return AMONG_FEW if 2 * few > len(found) else FEWEST


def _least(found: Observation) -> float:
    return NEARLY_ALL if len(_values(found)) < MANY else COVERS


def _values(found: Observation) -> set[float]:
    """The different values, expected and actual, of the wrong elements."""
    values: set[float] = set()
    for number in found.beyond:
        wrong = found.wrong(number)
        values |= {*found.came[number][wrong].tolist(), *found.expected[number].value[wrong].tolist()}
    return values


def _only(found: Observation, number: int) -> Observation:
    """The observation with one output compared, and no other."""
    never = [replace(one, judged=np.zeros(one.value.shape, dtype=bool)) for one in found.expected]
    return replace(found, expected=[one if n == number else never[n] for n, one in enumerate(found.expected)])


def _cause(cause: Named, shown: Sequence[Observation], beside: str = "") -> Cause:
    return Cause(cause.says, tuple(sorted((o.case for o in shown), key=lambda case: case.size())), beside)


def _narrow(case: Case) -> tuple[int, int]:
    """Cases with several positions along each axis come first, and of them the small ones."""
    return sum(size < 2 for size in case.sizes.values()), case.size()


def _smaller(specification: Specification, capability: Capability, case: Case) -> Iterator[Case]:
    """The case with no axis longer than a few positions, on which a search is quick."""
    for most in CAPS:
        new = replace(case, sizes={axis: min(size, most) for axis, size in case.sizes.items()})
        if specification.ok(new.sizes) and within(specification, capability, new):
            yield new


def _share(found: Observation) -> float:
    """The fraction of the elements that are wrong: fewer where a variation has left out one of two bugs."""
    wrong = [found.wrong(number) for number in range(len(found.expected))]
    return round(sum(float(w.sum()) for w in wrong) / max(1, sum(w.size for w in wrong)), 1)


def _variations(specification: Specification, capability: Capability, cases: Sequence[Case]) -> list[Case]:
    """The cases with one option at another value, one axis at 1 or one family replaced."""
    made = []
    for case in cases:
        for name, values in specification.values.items():
            made += [
                replace(case, options={**case.options, name: other}) for other in values if other != case.options.get(name)
            ]
        made += [replace(case, sizes={**case.sizes, axis: 1}) for axis, size in case.sizes.items() if size > 1]
        made += [replace(case, family=family) for family in specification.families if family != case.family]
    right = [case for case in _once(made) if specification.ok(case.sizes) and within(specification, capability, case)]
    return right[:VARIED]


def _once(cases: Iterable[Case]) -> list[Case]:
    found: list[Case] = []
    for case in cases:
        if case not in found:
            found.append(case)
    return found
