"""The twenty changes under the suite, in this process, and the page that says what came of them.

    python -m tests.strangers.judged --out docs/evidence/strangers.md

A changed file is executed as a module of its own, and its adapter is planned and run as the command line does, with the
operation that the change is in and no other: at the tier smoke, and where nothing fails there, at the tier standard.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import ModuleType

import numpy as np

from conformance.judge.verdict import expectation
from conformance.report.stream import Diagnosis, Result
from conformance.run.known import Known
from conformance.run.plan import Job, Selection, plan
from conformance.run.results import Setting
from conformance.run.runner import Outcome, run
from ssmspec_ref.contract import Adapter
from tests.strangers.changes import CHANGES, FOLDER, Change

TIERS = "smoke", "standard"
PAGE = Path(__file__).parent.parent.parent / "docs" / "evidence" / "strangers.md"


@dataclass(frozen=True)
class Judged:
    """What the suite said of a change: the first tier that failed it ("" if none did), its jobs and its outcome."""

    change: Change
    tier: str
    jobs: list[Job]
    outcome: Outcome

    @property
    def diagnosis(self) -> Diagnosis:
        """Of the way of failing with the most cases."""
        return max(self.outcome.diagnoses, key=lambda d: d.failures)

    def failing(self) -> Iterator[tuple[Job, Result]]:
        """Every case that a bound failed, under the inputs that were drawn first."""
        for job, result in zip(self.jobs, self.outcome.results, strict=True):
            if result.failing == "bound" and not result.message.startswith("with the inputs of seed"):
                yield job, result


def adapter_of(source: str, name: str) -> Adapter:
    module = ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
    adapter: Adapter = module.adapter()
    return adapter


def outcome_of(adapter: Adapter, tier: str, operation: str = "*") -> tuple[list[Job], Outcome]:
    jobs, _ = plan({adapter.name: adapter}, Selection(tier, operation=operation))
    return jobs, run(jobs, [], Setting({adapter.name: Known([], date.today())}))


def judged(change: Change, tiers: tuple[str, ...] = TIERS) -> Judged:
    adapter = adapter_of(change.source(), change.name)
    for tier in tiers:
        jobs, outcome = outcome_of(adapter, tier, change.operation)
        if not outcome.green:
            return Judged(change, tier, jobs, outcome)
    return Judged(change, "", jobs, outcome)


def misplaced(job: Job, result: Result) -> list[str]:
    """What a failing case says of the place, against the right kernel on the same inputs; nothing for what keeps a state.

    Both kernels compute alike but for the change, so that the place named must differ, if only in its last bit; and both are
    within the bound at the tokens before it, so that they are at most two bounds apart there. No tolerance is chosen.
    """
    right = adapter_of((FOLDER / job_file(job)).read_text(), "right").subjects[0].capabilities[job.case.operation].run
    if isinstance(right, type):
        return []
    arguments = job.specification.draw(job.case, job.capability.contract)
    wanted = expectation(job.specification, job.case, job.capability.contract, arguments, None)
    assert isinstance(wanted, list)
    both = []
    for kernel in (right, job.capability.run):
        came = kernel(*arguments)
        both.append(came if isinstance(came, tuple) else (came,))
    wrong = []
    for want, output, a, b in zip(wanted, result.outputs, *both, strict=True):
        apart = np.abs(np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64))
        if output.utilisation <= 1:
            continue
        if apart[tuple(output.first.values())] == 0:
            wrong.append(f"{result.case}: {want.name} is right at {output.first}")
        if "t" in output.first:
            axis = want.axes.split().index("t")
            before = np.take(apart > 2 * np.broadcast_to(want.bound, apart.shape), range(output.first["t"]), axis)
            if before.any():
                wrong.append(f"{result.case}: {want.name} is wrong before token {output.first['t']}")
    return wrong


def job_file(job: Job) -> str:
    return f"{job.subject.name}.py"


def page(found: list[Judged]) -> str:
    at = [sum(f.tier == tier for f in found) for tier in TIERS]
    cells = ["what is changed", "why it happens", "operation", "caught by", "where, as the diagnosis says"]
    rows = [cells, ["---"] * len(cells), *(_row(f) for f in found)]
    return _TEXT.format(
        caught=sum(at), all=len(found), smoke=at[0], standard=at[1], table="\n".join(f"| {' | '.join(row)} |" for row in rows)
    )


def _row(found: Judged) -> list[str]:
    change = found.change
    said = ["not caught", ""]
    if found.tier:
        d = found.diagnosis
        said = [f"{found.tier}, {d.failures} of {d.cases} cases", d.diverges.removeprefix(f"{change.operation}, ")]
    return [f"{change.name}<br>{_difference(change)}", change.why, f"`{change.operation}`", *said]


def _difference(change: Change) -> str:
    """The changed line, or the two statements that changed places."""
    old, new = ([" ".join(line.split()) for line in text.splitlines()] for text in (change.old, change.new))
    if sorted(old) == sorted(new):
        return "two statements change places"
    return "; ".join(f"`{a}` to `{b}`" for a, b in zip(old, new, strict=True) if a != b)


_TEXT = """\
# Twenty changes by a stranger

Made by `python -m tests.strangers.judged --out docs/evidence/strangers.md`.

Somebody who had not read the code of the suite wrote the kernels in `tests/strangers`, from [the rules for
adapters](../how-to/kernel.md) and the docstrings of the reference. They knew the case names that `conform list` prints, the
first 19 rows of [the planted faults](faults.md), and a list of common mistakes. All cases of these kernels pass at the tier
standard. Then the same author chose twenty changes of one index, sign, mask or order, before running any of them. Each change
is tested by the cases of its operation, with the default seed.

**{caught} of {all} are caught: {smoke} at the tier smoke, {standard} only at the tier standard.**

{table}

"Right" are outputs that the diagnosis found within their bounds. `tests/strangers/test_strangers.py` asserts all of this, and
compares the place that each failing case names with what the right kernel computes from the same inputs: there the two
differ, and at no earlier token by more than two bounds.

The adapter chooses how many entries a ring has, and the suite does not know it. This one has 10. In a ring of 64 only the
longest histories catch the same change, those of 68, 144 and 150 tokens at the tier standard; a
ring of more entries than that never wraps around.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PAGE)
    parser.parse_args().out.write_text(page([judged(change) for change in CHANGES]))


if __name__ == "__main__":
    main()
