"""A whole engine in one function: its speculation must be exercised, as far as it counts its drafts."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.errors import WrongCounts
from conformance.refusal import FAILED
from conformance.report.activity import IDLE
from conformance.report.stream import read_report
from conformance.suite.generate import counted
from tests.commands import ends, holds

pytest_plugins = ["pytester"]
CONFORMANCE = Path(sys.modules["conformance"].__file__ or "").parent
STARTER = (CONFORMANCE / "starters" / "generator.py").read_text(encoding="utf-8")
COUNTS = "return np.array(tokens), np.array(proposed), np.array(accepted)"
DRAFT = "[tokens[-1]] * drafts"
PLANTED = {
    "rejects every draft": ((DRAFT, "[-1] * drafts"),),
    "drafts nothing": ((DRAFT, "[following(tokens)]"), ("accepted += 1", "pass"), ("proposed += drafts", "pass")),
    "accepts every draft": ((DRAFT, "[following(tokens)]"), ("proposed += drafts", "proposed += 1")),
}
SAYS = {
    "rejects every draft": "proposed drafts was accepted, so this shows nothing about speculation",
    "drafts nothing": "no draft was proposed, so this shows nothing about speculation",
    "accepts every draft": "proposed drafts were accepted, so no rejection was exercised",
}


def changed(changes: tuple[tuple[str, str], ...]) -> str:
    """The starter with parts replaced."""
    source = STARTER
    for old, new in changes:
        assert source.count(old) == 1
        source = source.replace(old, new)
    return source


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs the starter with parts replaced, which ends with a code; further words are options."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    numbers = iter(range(100))

    def ran(changes: tuple[tuple[str, str], ...], code: int, *words: str, said: Any = ()) -> str:
        name = f"engine_{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(changed(changes))
        sys.modules.pop(name, None)
        return ends(code, "run", "--adapter", name, "--in-process", "--tier", "smoke", *words, said=said)

    return ran


def test_a_run_says_how_many_drafts_were_accepted(run: Callable[..., Any]) -> None:
    shown = run((), 0)
    drafts = [r.drafts for r in read_report(Path("conformance-report")).results if r.case]
    proposed, accepted = np.array(drafts).sum(0)
    assert 0 < accepted < proposed
    said = f"{accepted} of {proposed} drafts were accepted"
    holds(shown, f"engine: {said}")
    holds(Path("conformance-report/report.html").read_text(), said)


@pytest.mark.parametrize("fault", PLANTED)
def test_speculation_that_did_nothing_is_not_exercised_and_not_passed(run: Callable[..., Any], fault: str) -> None:
    said = SAYS[fault], "Nothing failed. Speculation was not exercised, so nothing is known about it."
    run(PLANTED[fault], FAILED, said=said)
    (idle,) = [r for r in read_report(Path("conformance-report")).results if r.failing == IDLE]
    assert (idle.verdict, idle.operation) == ("unknown", "generate.greedy")
    assert "<span>not exercised</span>" in Path("conformance-report/report.html").read_text()


def test_an_engine_that_counts_nothing_passes_and_is_told_what_that_leaves_open(run: Callable[..., Any]) -> None:
    said = "engine does not say how many drafts were accepted, and an engine that rejects all would pass"
    run(((COUNTS, "return np.array(tokens)"),), 0, said=said)


def test_plain_decoding_that_speculates_fails(run: Callable[..., Any]) -> None:
    run((("if not speculate:", "if False:"),), FAILED, said="with speculate=False it proposed")


def test_shards_are_held_to_it_when_they_are_merged(run: Callable[..., Any]) -> None:
    for part in ("1of2", "2of2"):
        run(PLANTED["rejects every draft"], 0, "--seed", "7", "--shard", part, "--report", part[0])
    ends(FAILED, "merge", "whole", "1", "2")
    assert [r.failing for r in read_report(Path("whole")).results if r.verdict == "unknown"] == [IDLE]


def test_pytest_fails_where_nothing_was_exercised(pytester: pytest.Pytester) -> None:
    for name, changes in (("right", ()), ("idle", PLANTED["rejects every draft"])):
        pytester.makepyfile(**{name: changed(changes)})
        done = pytester.runpytest_subprocess("--ssmspec-adapter", name, "-p", "no:cacheprovider")
        assert done.ret == (1 if changes else 0)
        assert ("proposed drafts was accepted" in done.stdout.str()) == bool(changes)


TOKENS = np.zeros((2, 3), np.int64)


def test_counts_are_of_all_prompts_or_of_each() -> None:
    assert counted(TOKENS)[1] is None
    assert counted((TOKENS, 6, 2))[1] == (6, 2)
    assert counted((TOKENS, np.array([4, 2]), np.array([2, 0])))[1] == (6, 2)


@pytest.mark.parametrize(
    ("came", "says"),
    [
        ((TOKENS, 6), "a tuple of 2"),
        ((TOKENS, 6.0, 2), "float64"),
        ((TOKENS, np.array([4, 2]), 2), "for each prompt, or in all"),
        ((TOKENS, 2, 6), "accepted 6 of 2 drafts"),
        ((TOKENS, 6, -1), "accepted -1 of 6 drafts"),
        ((TOKENS, np.array([1, 5]), np.array([3, 0])), "accepted 3 of 6 drafts"),
    ],
)
def test_counts_that_cannot_be_are_refused(came: tuple[Any, ...], says: str) -> None:
    with pytest.raises(WrongCounts, match=says):
        counted(came)
