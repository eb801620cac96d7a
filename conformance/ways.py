"""Ways of failing: the diagnoses of a report that say the same of several subjects, told once."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from .grid import RANK
from .report import Diagnosis


def listed(names: Iterable[str]) -> str:
    """Names, each once, with commas between them, or semicolons where a name has a comma of its own."""
    once = list(dict.fromkeys(names))
    return ("; " if any("," in name for name in once) else ", ").join(once)


@dataclass(frozen=True)
class Way:
    """One way of failing, with the diagnoses that share its smallest case."""

    diagnoses: tuple[Diagnosis, ...]

    @property
    def first(self) -> Diagnosis:
        return self.diagnoses[0]

    @property
    def subjects(self) -> str:
        return listed(d.subject for d in self.diagnoses)

    @property
    def failures(self) -> int:
        return sum(d.failures for d in self.diagnoses)

    @property
    def cases(self) -> int:
        return sum(d.cases for d in self.diagnoses)


def ways(diagnoses: Iterable[Diagnosis]) -> list[Way]:
    """The ways of failing, the worst first, then by adapter and operation."""
    found: dict[tuple[str, ...], list[Diagnosis]] = defaultdict(list)
    for d in diagnoses:
        found[d.verdict, d.adapter, d.operation, d.contract, d.failing, d.smallest].append(d)
    ordered = sorted(found.items(), key=lambda way: (-RANK.index(way[0][0]), way[0][1], way[0][2]))
    return [Way(tuple(same)) for _, same in ordered]
