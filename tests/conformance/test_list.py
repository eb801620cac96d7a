"""`conform list`: the cases of a tier, and those that would run of an adapter."""

import re

import pytest
from typer.testing import CliRunner

from conformance import main
from conformance.adapters import reference
from conformance.run.plan import Selection, plan
from conformance.suite import of_operation
from ssmspec_ref.contract import Limits


def listed(*words: str) -> tuple[list[str], str, int]:
    made = CliRunner().invoke(main.build(), ["conform", "list", *words])
    return made.stdout.splitlines(), made.stderr, made.exit_code


def test_the_tier_is_that_of_a_run_and_the_cases_are_counted() -> None:
    (specification,) = of_operation("ssd.step")
    lines, told, code = listed("--operation", "ssd.step")
    assert code == 0
    assert [line.split()[0] for line in lines] == [*map(specification.identify, specification.cases("standard", Limits()))]
    assert told.strip() == f"{len(lines)} cases of the tier standard"


def test_of_an_adapter_what_would_run_is_listed() -> None:
    jobs, _ = plan({"reference": reference.adapter()}, Selection("smoke", operation="ssd.s*"))
    lines, told, code = listed("--adapter", "reference", "--tier", "smoke", "--operation", "ssd.s*")
    assert code == 0
    assert [tuple(re.split(" {2,}", line)[:2]) for line in lines] == [(job.subject.name, job.identity) for job in jobs]
    assert told.strip() == f"{len(jobs)} cases of the tier smoke"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--adapter", "nothere:x"), "UnknownAdapter: the adapter 'nothere:x' needs a module 'nothere'"),
        (("--adapter", "reference", "--operation", "ssd.stop"), "UnknownCase: nothing to run"),
        (("--adapter", "reference", "--adapter", "reference"), "--adapter reference is given twice"),
        (("--tier", "huge"), "--tier is 'huge'; it must be one of smoke, standard, deep"),
    ],
)
def test_what_cannot_be_listed_is_refused(words: tuple[str, ...], said: str) -> None:
    _, told, code = listed(*words)
    assert code == 2
    assert said in told
