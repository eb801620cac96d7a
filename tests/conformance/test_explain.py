"""A case id is explained: every axis, option and family of the suite has words, and every kind of case can be explained."""

import pytest
from typer.testing import CliRunner

from conformance.cli import app
from conformance.explain import words
from conformance.explain.explain import explain
from conformance.suite import SPECIFICATIONS
from ssmspec_ref.contract import Limits


def test_every_axis_option_and_family_of_the_suite_has_words_and_nothing_else_has() -> None:
    assert {axis for s in SPECIFICATIONS for axis in s.base} == set(words.AXES)
    assert {name for s in SPECIFICATIONS for name in (*s.values, *s.fixed)} == set(words.OPTIONS)
    assert {family for s in SPECIFICATIONS for family in s.families} == set(words.FAMILIES)
    values = {f"{name}={value}" for s in SPECIFICATIONS for name, offered in s.values.items() for value in offered}
    assert set(words.VALUES) <= values, "words for a value that no case has"


@pytest.mark.parametrize("specification", SPECIFICATIONS, ids=lambda s: s.operation + "".join(s.fixed.values()))
def test_a_case_of_every_operation_is_explained(specification: object) -> None:
    case = next(iter(specification.cases("smoke", Limits())))  # type: ignore[attr-defined]
    told = dict(explain(specification.identify(case)))  # type: ignore[attr-defined]
    assert told["compared"]
    assert told[case.operation]


@pytest.mark.parametrize("operation", dict.fromkeys(s.operation for s in SPECIFICATIONS))
def test_every_operation_is_explained_by_what_it_takes_and_returns(operation: str) -> None:
    told = dict(explain(operation))
    assert told["returns"]
    assert len(told) > 4, "no argument is named"


def test_the_arguments_of_a_step_have_their_axes() -> None:
    told = dict(explain("ssd.step"))
    assert (told["token.B"], told["token.z"], told["params.dt_softplus"]) == ("(b g n)", "(b h p), may be None", "bool")


def test_the_command_prints_what_each_part_means_and_refuses_what_is_no_case() -> None:
    made = CliRunner().invoke(
        app, ["explain", "ssd.verify_snapshots/b2,t4,g2,h6,p5,n4,j3/read=last/gentle/s5"], env={"COLUMNS": "200"}
    )
    assert made.exit_code == 0, made.output
    for said in ("j3", "3 windows, one after", "read=last", "at the end only", "s5", "gaps of NaN", "decays near one"):
        assert said in made.output
    wrong = CliRunner().invoke(app, ["explain", "ssd.scan/b2,t4/plain/gentel/s0"], env={"COLUMNS": "400"})
    assert wrong.exit_code == 2
    assert "no family gentel" in wrong.output


def test_an_id_of_pytest_is_explained_like_its_case() -> None:
    case = "ssd.step/b2,g2,h6,p5,n4/plain/gentle/s0"
    assert explain(f"ssmspec::mine::ssd::fp32/sequential::{case}") == explain(case)
