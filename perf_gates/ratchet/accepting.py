"""Writes new limits from a run, with a reason: the time of every measurement, and the cells that miss their target.

Only valid measurements are accepted: on the GPU and versions of `gates.toml`, with the current kernels, with
known noise, and with a possible time. Limits of measurements that the run lacks stay, and so do those of baselines that it
measured as slower (`baselines`): raising them would let cells pass that miss their target.
"""

from collections.abc import Iterator
from dataclasses import replace

from ..verdicts.gates import Gates
from ..verdicts.measured import Results
from ..verdicts.verdict import Verdict, judge, other_machine
from .bars import Bars, times
from .baselines import kept, without
from .peers import of_run
from .possible import every


class NotAcceptedError(ValueError):
    """A run from which no limits can be made."""


def accepted(gates: Gates, results: Results, kernels: str, before: Bars | None, reason: str) -> Bars:
    """The new limits. Raises: NotAcceptedError."""
    if not reason.strip():
        raise NotAcceptedError("no reason was given; say why these times become the new limits")
    if faults := list(refusals(gates, results)):
        raise NotAcceptedError("; ".join(faults[:5]))
    machine = next(iter(results.parts.values()))["machine"]
    run = {name: str(machine[name]) for name in ("gpu", "torch", "triton")}
    commits = (before.commits if before else {}) | {
        part: str(held["machine"]["commit"]) for part, held in results.parts.items()
    }
    now, stood = times(results), before or Bars(run, reason, {})
    now = without(kept(gates, results, stood), now, stood)
    made = Bars(run, reason, stood.times | now, commits=commits, peers=stood.peers | of_run(results))
    found = list(judge(gates, results, kernels, made))
    if unknown := [str(j) for j in found if j.red and j.verdict is Verdict.UNKNOWN and j.value is not None]:
        raise NotAcceptedError("; ".join(unknown[:5]))
    unmeasured = {j.row.name for j in found if j.value is None}
    missed = {name: value for name, value in (before.missed if before else {}).items() if name in unmeasured}
    missed |= {j.row.name: round(j.value, 6) for j in found if j.value is not None and not j.table.holds(j.value, j.target)}
    return replace(made, missed=missed)


def refusals(gates: Gates, results: Results) -> Iterator[str]:
    for part, found in results.parts.items():
        yield from other_machine(gates, part, found["machine"])
    yield from every(results, gates.limits)
