"""Kinds of failure: diagnoses that are equal for several subjects are merged."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ..judge.raised import RAISED, origin
from .grid import RANK
from .stream import Diagnosis


def listed(names: Iterable[str]) -> str:
    """Distinct names, separated by commas, or by semicolons if a name contains a comma."""
    once = list(dict.fromkeys(names))
    return ("; " if any("," in name for name in once) else ", ").join(once)


@dataclass(frozen=True)
class FailureGroup:
    """One kind of failure, with the diagnoses that share its smallest case, or the line that raised."""

    diagnoses: tuple[Diagnosis, ...]

    @property
    def first(self) -> Diagnosis:
        return self.diagnoses[0]

    @property
    def subjects(self) -> str:
        return listed(d.subject for d in self.diagnoses)

    @property
    def operations(self) -> str:
        return listed(d.operation for d in self.diagnoses)

    @property
    def contracts(self) -> str:
        return listed(d.contract for d in self.diagnoses)

    @property
    def failures(self) -> int:
        return sum(d.failures for d in self.diagnoses)

    @property
    def cases(self) -> int:
        return sum(d.cases for d in self.diagnoses)


def grouped(diagnoses: Iterable[Diagnosis]) -> list[FailureGroup]:
    """The kinds of failure, the worst first, then by adapter and operation."""
    found: dict[tuple[object, ...], list[Diagnosis]] = defaultdict(list)
    for d in diagnoses:
        if d.failing in RAISED:  # the same exception from one line
            found[d.verdict, d.adapter, d.failing, origin(d.failing, d.message), d.reason].append(d)
            continue
        said = (d.message, d.diverges, d.looks_like, *d.facts.items())
        found[d.verdict, d.adapter, d.operation, d.contract, d.failing, d.smallest, said].append(d)
    ordered = sorted(found.values(), key=lambda same: (-RANK.index(same[0].verdict), same[0].adapter, same[0].operation))
    return [FailureGroup(tuple(same)) for same in ordered]
