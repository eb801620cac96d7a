"""A run that stops early says so everywhere; the table comes before the search for causes, which can be left out."""

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from conformance.diagnose import facts
from conformance.refusal import FAILED, INTERRUPTED
from conformance.report.badge import RED
from conformance.report.stream import Report, read_report
from tests.commands import ends, holds, reported

ADAPTER = """
import numpy as np
from ssmspec_ref import ssd
from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject

TAKES = {{"D": ("head", "off"), "z": ("off",), "dt_bias": ("off",), "dt_limit": ("off",)}}

def step(S, token, params):
    if {raises}:
        raise ValueError("the kernel does not take this")
    y, after = ssd.step(S, token, params)
    return ({factor} * y).astype(np.float32), after.astype(np.float32)

def adapter():
    limits = {limits}
    return Adapter("own", "1", (Subject("kernel", {{"ssd.step": Capability(step, NumericContract(), limits=limits)}}),))
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Write":
    monkeypatch.syspath_prepend(str(tmp_path))
    return Write(tmp_path)


class Write:
    """Writes an adapter of `ssd.step`, each under another name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def __call__(self, raises: str = "False", factor: float = 1.0, limits: str = "Limits(TAKES)") -> str:
        self.count += 1
        name = f"adapter_{self.folder.name}_{self.count}".replace("-", "_")
        (self.folder / f"{name}.py").write_text(ADAPTER.format(raises=raises, factor=factor, limits=limits))
        return f"{name}:adapter"


def run(folder: Path, adapter: str, *words: str, code: int = 0) -> tuple[str, Report]:
    """What a run prints, on one line, and its report."""
    said = ends(code, "run", "--adapter", adapter, "--in-process", "--report", folder, *words, columns=160)
    return said, read_report(folder)


@pytest.mark.parametrize(("words", "failed"), [(("-x",), 1), (("--max-failures", "3"), 3)])
def test_a_run_that_stops_early_is_never_green_and_says_what_it_left(
    write: Write, tmp_path: Path, words: tuple[str, ...], failed: int
) -> None:
    shown, report = run(tmp_path / "r", write(factor=1.5), "--explain", "none", *words, code=FAILED)
    counts = Counter(r.verdict for r in report.results if r.case)
    assert counts["fail"] == failed
    assert counts["not-run"] > 10
    assert counts.total() == failed + counts["not-run"]
    why = f"the run stopped after {failed} case{'s' if failed > 1 else ''} that failed or stayed unknown"
    assert {r.reason for r in report.results if r.verdict == "not-run"} == {why}
    holds(shown, (f"{failed} fail, {counts['not-run']} not run", f"0/{failed}"))  # the table
    holds(" ".join(shown.replace("│", " ").split()), f"{why}; {counts['not-run']} cases were not run")
    page, badge = ((tmp_path / "r" / name).read_text() for name in ("report.html", "badge.svg"))
    holds(page, f"Stopped early: {why}")
    holds(badge, (RED, f"0 of {failed} pass, {failed} not, {counts['not-run']} not run"))
    junit = (tmp_path / "r" / "junit.xml").read_text()
    holds(junit, f'failures="{failed}" errors="0" skipped="{counts["not-run"]}"')


def test_a_run_with_fewer_failures_than_it_may_have_runs_all(write: Write, tmp_path: Path) -> None:
    words = ("--explain", "none", "--max-failures", "1000")
    shown, report = run(tmp_path / "r", write(raises="len(S) > 16"), *words, code=FAILED)
    counts = Counter(r.verdict for r in report.results if r.case)
    assert 0 < counts["fail"] < counts["pass"]
    assert not counts["not-run"]
    assert "stopped" not in shown


def test_a_run_in_several_processes_stops_too(write: Write, tmp_path: Path) -> None:
    words = ("--adapter", write(factor=1.5), "-x", "--explain", "none", "--jobs", "2")
    counts = Counter(r.verdict for r in reported(FAILED, *words, report=tmp_path / "r").results if r.case)
    assert counts["fail"] == 1
    assert counts["not-run"] > 10


def test_entries_of_a_known_list_may_belong_to_cases_that_were_left(write: Write, tmp_path: Path) -> None:
    known = tmp_path / "known.toml"
    entry = 'subject = "kernel"\ncase = "ssd.step/b17,*"\nreason = "r"\nlink = "docs/found.md#x1"\nexpires = 2999-01-01\n'
    known.write_text(f"[[known]]\n{entry}")
    _, report = run(tmp_path / "r", write(factor=1.5), "--explain", "none", "-x", "--known", str(known), code=FAILED)
    assert not [r for r in report.results if r.failing == "known-list"]


def test_the_table_is_printed_before_the_search_for_causes(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that breaks the process leaves the table."""

    def breaks(*given: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(facts, "decides", breaks)
    monkeypatch.setattr(facts, "observe", breaks)
    words = ("--adapter", write(factor=1.5), "--tier", "smoke", "--in-process", "--report", tmp_path / "r")
    assert re.search(r"fp32/sequential +[1-9] fail", ends(INTERRUPTED, "run", *words, said="interrupted", columns=160))


def test_the_table_is_printed_once(write: Write, tmp_path: Path) -> None:
    for factor in (1.0, 1.5):
        words = ("--tier", "smoke", "--explain", "none")
        told, _ = run(tmp_path / str(factor), write(factor=factor), *words, code=FAILED if factor > 1 else 0)
        assert told.count("fp32/sequential  ") == (2 if factor > 1 else 1)  # with the head of the failure
    assert told.index("looking for the smallest case") > told.index(" step ") < told.index("smallest  ")


def test_more_is_explained_where_more_is_asked_for(write: Write, tmp_path: Path) -> None:
    adapter, found = write(factor=1.5), {}
    for explain in ("none", "quick", "full"):
        _, report = run(tmp_path / explain, adapter, "--tier", "smoke", "--explain", explain, code=FAILED)
        (found[explain],) = report.diagnoses
    assert not found["none"].facts
    assert not found["none"].smallest.startswith("ssd.step/b1,g1,h1,p1,n1/")
    assert found["none"].message.startswith("y is wrong by")
    assert found["quick"].smallest == found["full"].smallest
    assert found["quick"].smallest.startswith("ssd.step/b1,g1,h1,p1,n1/")
    assert "values" in found["quick"].facts
    assert "behaves" not in found["quick"].facts
    assert "behaves" in found["full"].facts
    assert {r.verdict for r in report.results if r.case} == {"fail"}


def test_two_green_runs_of_the_same_code_compare_as_equal(write: Write, tmp_path: Path) -> None:
    adapter = write()
    first, second = (run(tmp_path / seed, adapter, "--seed", seed)[1] for seed in ("5", "6"))
    drawn = [{r.case for r in report.results if r.drawn} for report in (first, second)]
    assert [len(cases) for cases in drawn] == [2, 2]
    assert drawn[0] != drawn[1]
    said = "0 broken, 0 no longer run, 0 fixed, 0 new", "; drawn by the seeds: 2 in the first report only, 2 in the second"
    ends(0, "compare", tmp_path / "5", tmp_path / "6", said=said)
    assert "drawn by" not in ends(0, "compare", tmp_path / "5", tmp_path / "5")


@pytest.mark.parametrize(
    ("raises", "limits", "line"),
    [
        ("params.D is not None and params.D.ndim == 2", "Limits()", 'limits=Limits({"D": ("head", "off")})'),
        (
            "token.z is not None",
            'Limits({"D": ("head",)}, sizes={"n": (1, 64)}, reason="no such option")',
            'limits=Limits({"D": ("head",), "z": ("off",)}, sizes={"n": (1, 64)}, reason="no such option")',
        ),
        ("token.z is not None or params.dt_bias is not None", "Limits(TAKES | {'z': ('off', 'on')})", None),
        ("S.shape[-1] > 16", "Limits(TAKES)", None),
    ],
)
def test_a_case_that_raises_prints_the_limits_that_leave_it_out_and_pasted_they_do(
    write: Write, tmp_path: Path, raises: str, limits: str, line: str | None
) -> None:
    _, report = run(tmp_path / "a", write(raises, limits=limits), "--explain", "quick", "--seed", "5", code=FAILED)
    (found,) = report.diagnoses
    told = found.facts["takes"]
    assert line is None or told.endswith(f"declare {line}")
    pasted = told.partition("declare limits=")[2]
    _, report = run(tmp_path / "b", write(raises, limits=pasted), "--explain", "none", "--seed", "5")
    assert sum(r.verdict == "pass" for r in report.results) > 20


def test_what_raises_everywhere_is_no_limit(write: Write, tmp_path: Path) -> None:
    _, report = run(tmp_path / "a", write("True"), "--tier", "smoke", "--explain", "quick", code=FAILED)
    (found,) = report.diagnoses
    assert "takes" not in found.facts


def test_options_that_passing_cases_have_too_are_not_named(write: Write, tmp_path: Path) -> None:
    adapter = write("token.z is not None", limits="Limits()")
    _, report = run(tmp_path / "a", adapter, "--explain", "none", "--seed", "5", code=FAILED)
    (found,) = report.diagnoses
    assert found.facts["takes"].startswith("if it does not take z=on, declare ")


def test_the_line_of_a_program_is_json(write: Write) -> None:
    from conformance.diagnose.takes import as_program, as_python
    from ssmspec_ref.contract import Limits

    limits = Limits({"D": ("off",), "slots": ("rows",)}, {"n": (1, 8)})
    assert as_program(limits) == '"limits": {"options": {"D": ["off"]}, "sizes": {"n": [1, 8]}}'
    assert as_python(limits) == 'limits=Limits({"D": ("off",)}, sizes={"n": (1, 8)})'
    assert shlex.split(as_python(Limits())) == ["limits=Limits()"]
