"""A case id is explained: every axis, option and family of the suite has words, and every kind of case can be explained."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from conformance.cases import Case
from conformance.explain import words
from conformance.explain.arguments import ARGUMENTS, meaning
from conformance.explain.explain import explain
from conformance.run.program import arguments_of
from conformance.run.sessions import opened
from conformance.suite import SPECIFICATIONS
from conformance.suite.specification import TIERS
from ssmspec_ref.contract import OPERATIONS, Limits
from tests.commands import ends


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


def test_the_command_prints_what_each_part_means() -> None:
    said = "j3", "3 windows, one after", "read=last", "at the end only", "s5", "gaps of NaN", "decays near one"
    ends(0, "explain", "ssd.verify_snapshots/b2,t4,g2,h6,p5,n4,j3/read=last/gentle/s5", said=said)


def test_an_id_of_pytest_is_explained_like_its_case() -> None:
    case = "ssd.step/b2,g2,h6,p5,n4/plain/gentle/s0"
    assert explain(f"ssmspec::mine::ssd::fp32/sequential::{case}") == explain(case)


def test_every_argument_of_every_operation_has_words_and_nothing_else_has() -> None:
    taken = {(one, name) for one in OPERATIONS for name in (*opened(one), *(() if opened(one) else arguments_of(one)))}
    called = {"script", "rounds", "state", "beside", "steps", "ranks", "layer"}  # what is passed to methods afterwards
    assert [one for one in taken if not meaning(*one)] == []
    assert {name for _, name in taken} | called == set(ARGUMENTS)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (
            "ssd.scan_packed/b3,t7,g2,h6,p5,n8/plain/gentle/s0",
            {"run.x": "float64 (b t h p) (1, 12, 6, 5)", "bounds": "int64 (4,): [0, 7, 8, 12]; sequence i has the tokens"},
        ),
        (
            "delta.scan/b3,t7,g2,h6,k5,v8/slots=fresh/gentle/s0",
            {"S.states": "float64 (s h k v) (9, 6, 5, 8); the states of all", "S.fresh": "bool (b) (3,): [False, True"},
        ),
        (
            "ssd.verify_snapshots/b2,t4,g2,h6,p5,n4,j3/plain/gentle/s5",
            {"rounds.*.window.dt": "float64 (b t h) (2, 4, 6) in each of 3", "rounds.*.advanced": "int64 (b) (2,) in"},
        ),
        ("acceptance.sampled/b2,t4,i5/plain/normal/s0", {"q": "float64 (b t i) (2, 4, 5); [b, i] is the draft model's"}),
    ],
)  # fmt: skip
def test_what_a_kernel_receives_in_a_case_is_listed(case: str, said: dict[str, str]) -> None:
    told = dict(explain(case))
    assert {name: told[name][: len(start)] for name, start in said.items()} == said


LONGEST = re.compile(r"^\| (`.*`) \| .* \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)
"""A row of the page: operations, and the longest case of each tier."""


def test_the_page_names_the_longest_cases_of_each_tier() -> None:
    page = Path(__file__).parents[2].joinpath("docs/reference/case-ids.md").read_text(encoding="utf-8")
    rows = [(re.findall(r"`(.*?)`", row[0]), [*map(int, row[1:])]) for row in LONGEST.findall(page)]
    assert len(rows) > 8
    for operations, said in rows:
        found = [s for s in SPECIFICATIONS if any(fnmatchcase(s.operation, one) for one in operations)]
        assert said == [max(long(case) for s in found for case in s.cases(tier, Limits())) for tier in TIERS], operations


def long(case: Case) -> int:
    t, j = case.sizes.get("t", 1), case.sizes.get("j", 1)
    if case.operation.startswith("layer."):
        return t + j if case.operation != "layer.prefill" else t
    return j if case.operation.startswith(("life.", "generate.")) else t * j
