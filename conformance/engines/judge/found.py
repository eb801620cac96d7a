"""The results of an engine on a checkpoint: an outcome for each configuration and law, and what failed."""

from collections import Counter
from dataclasses import dataclass, field

from ..errors import EngineRefused
from ..laws import COUNTED, Cell, Outcome

KEPT, DRAFTED = "log-probabilities kept", "log-probabilities of drafted tokens"
IDLE = ("not exercised", "not observable")


@dataclass(frozen=True)
class Failure:
    """A failure after shrinking: the law, the finding, the schedule in lines, and its explanation."""

    configuration: str
    law: str
    finding: str
    schedule: tuple[str, ...] = ()
    explained: str = ""
    rerun: str = ""


@dataclass
class Found:
    """All results of a checkpoint."""

    engine: str = ""
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    schedules: int = 0
    requests: int = 0
    tokens: int = 0
    counts: dict[str, list[int]] = field(default_factory=dict)
    preempted: Counter[str] = field(default_factory=Counter)
    """How often a running request lost its place, by configuration."""
    told: set[str] = field(default_factory=set)
    """Configurations whose answers say how many drafts were accepted."""
    notes: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    """Configurations that were left because the run stopped early."""
    named: frozenset[str] = frozenset()
    """Configurations that the user named: one that the engine refuses leaves the verdict unknown."""

    def count(self, configuration: str, law: str, outcome: Outcome, many: int = 1) -> None:
        self.cells.setdefault((configuration, law), Cell()).counts[outcome] += many

    def ended(self, configuration: str, law: str, error: Exception) -> None:
        """Record that a configuration was refused, or that its engine died."""
        if isinstance(error, EngineRefused):
            self.refusals[configuration] = str(error)
            self.count(configuration, law, "refused")
        else:
            self.count(configuration, law, "died")
            self.failures.append(Failure(configuration, law, f"{type(error).__name__}: {error}"))

    def outcome(self, configuration: str, law: str) -> Outcome:
        """Of one cell, with the floor of activity: where no draft was accepted, or none rejected, the law is not passed; nor
        where the engine does not tell how many were; nor where log-probabilities are 0 of some of the tokens."""
        cell = self.cells.get((configuration, law))
        if cell is None:
            return "not exercised"
        found = cell.outcome()
        if law == KEPT and found == "passed" and cell.counts["not judged"]:
            return "not judged"
        if law in ("speculation", *COUNTED) and found in ("passed", "near tie"):
            if configuration not in self.told:
                return "not observable"
            drafted, accepted = self.counts.get(configuration, [0, 0])
            if not accepted or accepted == drafted:
                return "not exercised"
        return found

    @property
    def red(self) -> bool:
        return any(self.outcome(*key) in ("differs", "died") for key in self.cells)

    @property
    def green(self) -> bool:
        """Nothing failed, something passed, and every configuration exercised what it is meant to test."""
        unknown = [key for key in self.cells if self.outcome(*key) == "near tie"]
        unknown += [key for key in self.cells if key[1] == KEPT and self.outcome(*key) == "not judged"]
        idle = [c for c in self.counts if c not in self.refusals and self.outcome(c, purpose(c)) in IDLE]
        unknown += [(c, purpose(c)) for c in self.refusals if c in self.named]
        return not (self.red or unknown or idle or self.not_run) and any(self.outcome(*key) == "passed" for key in self.cells)

    @property
    def verdict(self) -> str:
        """The result in words: what was refused is neither passed nor failed, and is always told."""
        refused = f"{len(self.refusals)} configuration{'s' * (len(self.refusals) != 1)} refused"
        if self.refusals and not any(self.outcome(*key) not in ("refused", "not exercised") for key in self.cells):
            return f"not exercised, with {refused}"
        word = "failed" if self.red else "passed" if self.green else "unknown"
        return f"{word}, with {refused}" if self.refusals else word


def purpose(configuration: str) -> str:
    """The law that a configuration is meant to test."""
    for name, law in (
        ("ngram", "speculation"),
        ("model", "speculation"),
        ("cache", "cache"),
        ("chunk", "chunk"),
        ("tight", "preemption"),
        ("graphs", "graphs"),
        ("served", "speculation"),
        ("varied", "drafts"),
    ):
        if name in configuration:
            return law
    return "repeated"
