"""Run a failing case again in a new process: does it fail alone, or only after earlier calls?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ssmspec_ref.contract import Capability, Verdict

from ..cases import Case
from ..judge.verdict import Judgement, judge
from ..run.calls import bench_of
from ..suite.specification import Specification

Called = tuple[Specification, Capability, Case]


@dataclass(frozen=True)
class Replayed:
    """The result of a replay. `alone`: the case fails without earlier calls. `before`: the fewest of the last earlier cases
    after which it fails; empty if it fails alone or never fails again."""

    alone: bool
    before: tuple[int, ...] = ()

    @property
    def says(self) -> str:
        """ "" if it fails alone."""
        if self.alone:
            return ""
        if not self.before:
            return (
                "passes alone in a new process, and also after the same earlier cases: the failure is random, as with a race "
                "or uninitialised memory"
            )
        many = "case" if len(self.before) == 1 else f"{len(self.before)} cases"
        return f"depends on earlier calls: it passes alone in a new process, and fails after the {many} that ran before it"


def replay(called: Called, earlier: Sequence[Called], seed: int) -> Replayed | None:
    """Replay a failure. None if the implementation has no separate process that can be restarted."""
    renew: Callable[[], None] | None = getattr(bench_of(called[1]), "close", None)
    if renew is None:
        return None

    def fails(before: Sequence[Called]) -> bool:
        renew()
        for one in before:
            _judged(one, seed)
        return _judged(called, seed).verdict is not Verdict.PASS

    if fails(()):
        return Replayed(True)
    tried = [count for count in (1, 4, 16) if count < len(earlier)] + [len(earlier)]
    found = next((count for count in tried if count and fails(earlier[-count:])), 0)
    return Replayed(False, tuple(range(len(earlier) - found, len(earlier))))


def _judged(called: Called, seed: int) -> Judgement:
    specification, capability, case = called
    return judge(specification, capability, case, seed)
