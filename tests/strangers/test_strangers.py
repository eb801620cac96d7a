"""Kernels by an author who had not read the suite pass it; twenty changes of them fail, each at its operation and place."""

import functools

import pytest

from tests.strangers.changes import CHANGES, FOLDER, R, W
from tests.strangers.judged import PAGE, Judged, adapter_of, judged, misplaced, outcome_of, page

pytestmark = pytest.mark.xdist_group("strangers")  # each change is judged once for all these tests
TOKENLESS = {"ssd.step", "conv.step", "conv.commit", "conv.commit_path", "ssd.buffered_verify"}
"""Single tokens, a window of the convolution behind the last token, and the state of a ring, which the diagnosis names by its
window."""
ROUNDED = "softplus is x from 10 on"
"""Wrong by 2 to 5 bounds: how NumPy rounds may decide which case is the smallest that shows it, and so the place."""
BY_NAME = {change.name: change for change in CHANGES}
SLOW = {
    "ring turns one entry early",
    "softplus is x from 10 on",
    "error of the state that has not decayed",
    "eps outside the root",
    "B and C swapped",
    "gate before the skip",
}
"""Changes that take 12 to 96 seconds each: tested every night."""
QUICK = [name for name in BY_NAME if name not in SLOW]
NAMES = [pytest.param(name, marks=[pytest.mark.nightly] if name in SLOW else []) for name in BY_NAME]


@functools.cache
def found(name: str) -> Judged:
    return judged(BY_NAME[name])


def placed(text: str) -> str:
    """A page without the place of what a rounding may move."""
    (row,) = [line for line in text.splitlines() if line.startswith(f"| {ROUNDED}<br>")]
    return text.replace(row, row.rpartition(" | ")[0])


@pytest.mark.parametrize(("file", "cases"), [(R, 34), (W, 26)])
def test_the_right_kernels_pass(file: str, cases: int) -> None:
    jobs, outcome = outcome_of(adapter_of((FOLDER / file).read_text(), "right"), "smoke")
    assert len(jobs) == cases
    assert {result.verdict for result in outcome.results} == {"pass"}


def test_every_operation_of_the_strangers_has_a_change() -> None:
    assert len(BY_NAME) == len(CHANGES) == 20
    offered = {
        operation
        for file in (R, W)
        for operation in adapter_of((FOLDER / file).read_text(), "right").subjects[0].capabilities
    }
    assert offered == {change.operation for change in CHANGES}


@pytest.mark.parametrize("name", NAMES)
def test_a_change_fails_and_the_diagnosis_names_operation_and_place(name: str) -> None:
    """The place is where the right kernel computes otherwise.

    Where only the second inputs fail at the tier smoke, the cases of the tier standard are used.
    """
    judgement = found(name)
    assert judgement.tier, f"{name} is not caught"
    diagnosis, operation = judgement.diagnosis, BY_NAME[name].operation
    assert {(d.operation, d.verdict, d.failing) for d in judgement.outcome.diagnoses} == {(operation, "fail", "bound")}
    assert diagnosis.diverges.startswith(f"{operation}, in the ")
    assert "row " in diagnosis.diverges
    assert operation in TOKENLESS or ", token " in diagnosis.diverges
    assert operation != "ssd.buffered_verify" or "after window " in diagnosis.diverges
    assert f"--case {diagnosis.smallest}" in diagnosis.rerun
    failing = list(judgement.failing()) or list(judged(BY_NAME[name], ("standard",)).failing())
    assert failing
    assert [wrong for job, result in failing for wrong in misplaced(job, result)] == []


def test_a_place_that_is_not_the_first_is_found_out() -> None:
    job, result = next(iter(found("decay of the token before").failing()))
    (y, *rest) = result.outputs
    late = y.model_copy(update={"first": y.first | {"t": y.first["t"] + 1}})
    said = misplaced(job, result.model_copy(update={"outputs": (late, *rest)}))
    assert said == [f"{result.case}: y is wrong before token {y.first['t'] + 1}"]


def test_a_place_that_is_right_is_found_out() -> None:
    job, result = next(iter(found("group by remainder").failing()))
    outputs = tuple(o.model_copy(update={"first": o.first | {"h": 0}}) for o in result.outputs)
    assert misplaced(job, result.model_copy(update={"outputs": outputs}))[0].startswith(f"{result.case}: y is right at ")


@pytest.mark.nightly
def test_a_ring_of_64_entries_is_turned_by_the_longest_history() -> None:
    change = BY_NAME["ring turns one entry early"]
    small, large = "RING = 10\n", "RING = 64\n"
    assert change.source().count(small) == 1
    jobs, outcome = outcome_of(adapter_of(change.source().replace(small, large), "large"), "standard", change.operation)
    sizes = {job.identity: job.case.sizes["t"] * job.case.sizes["j"] for job in jobs}
    assert not outcome.green
    failing = {result.case for result in outcome.results if result.verdict == "fail"}
    assert failing == {case for case, tokens in sizes.items() if tokens > 64}


def test_a_text_that_does_not_stand_there_once_is_refused() -> None:
    change = CHANGES[0]
    with pytest.raises(ValueError, match=r"stands 0 times in recurrences.py; once is needed"):
        type(change)(change.name, change.file, change.operation, "no such text", "", "").source()


def test_rows_of_the_page_are_what_the_code_makes() -> None:
    assert len(QUICK) == len(CHANGES) - len(SLOW) >= 12
    made = {line for line in page([found(name) for name in QUICK]).splitlines() if "<br>" in line}
    assert len(made) == len(QUICK)
    assert made <= set(PAGE.read_text().splitlines())


@pytest.mark.nightly
def test_the_page_is_what_the_code_makes() -> None:
    assert placed(PAGE.read_text()) == placed(page([found(name) for name in BY_NAME]))
