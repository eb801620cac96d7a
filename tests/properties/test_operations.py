"""Fuzzing of plain operations: drawn cases are cases of the suite, and reach what no table has."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from conformance.refusal import FAILED, REFUSED
from conformance.run.load import load
from conformance.run.plan import Selection, plan
from conformance.suite import SPECIFICATIONS, find
from conformance.suite.specification import Specification
from property_tests.campaigns.operations import cases, ranges
from property_tests.cli import app
from property_tests.store import failures
from ssmspec_ref.contract import Limits
from tests.commands import ends

KERNEL = '''
"""An SSD step that forgets one channel with three rows or more, six channels or more, and few states."""

from ssmspec_ref import ssd
from ssmspec_ref.contract import FLOAT64, Adapter, Capability, Limits, Subject


def step(S, token, params):
    y, after = ssd.step(S, token, params)
    rows, _, channels = token.x.shape
    if {wrong} and rows >= 3 and channels >= 6 and S.shape[-1] <= 8:
        after = after.copy()
        after[-1, -1, -1] = S[-1, -1, -1]
    return y, after


def adapter():
    sizes = {{"p": (1, 7)}}
    operations = {{"ssd.step": Capability(step, FLOAT64, Limits({{}}, sizes, reason="at most seven channels"))}}
    return Adapter("{name}", "1", (Subject("ssd", operations),))
'''


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    for name, wrong in (("right_step", False), ("wrong_step", True)):
        (tmp_path / f"{name}.py").write_text(KERNEL.format(name=name, wrong=wrong))
    return "wrong_step:adapter"


def words(adapter: str, folder: str, seed: int, examples: int = 150) -> list[str]:
    given = {"adapter": adapter, "operation": "ssd.step", "folder": folder, "seed": seed, "examples": examples, "parts": 1}
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


@pytest.mark.parametrize("specification", SPECIFICATIONS, ids=lambda s: f"{s.operation} {' '.join(s.fixed.values())}")
def test_a_drawn_case_is_found_by_its_id_and_lies_within_the_limits(specification: Specification) -> None:
    limits = Limits({}, dict.fromkeys(list(specification.base)[:1], (1, 3)), reason="small")
    low, top, _ = ranges(specification, limits)

    @settings(max_examples=10, database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases(specification, limits))
    def check(case: object) -> None:
        assert find(specification.identify(case)) == (specification, case)  # type: ignore[arg-type]
        assert specification.ok(case.sizes)  # type: ignore[attr-defined]
        assert all(low[axis] <= size <= top[axis] for axis, size in case.sizes.items())  # type: ignore[attr-defined]

    check()


def test_a_fault_that_no_table_reaches_is_found_cut_down_kept_and_found_again(tmp_path: Path, kernel: str) -> None:
    jobs, _ = plan({kernel: load(kernel)}, Selection(tier="standard"))
    sizes = [job.case.sizes for job in jobs]
    assert not any(size["b"] >= 3 and size["p"] >= 6 and size["n"] <= 8 for size in sizes), "a table has it"
    ends(FAILED, *words(kernel, "one", 1), app=app)
    (kept,) = failures.kept(tmp_path / "one")
    assert "ssd.step/b3,g1,h1,p6,n1/plain" in kept.message
    again = subprocess.run([sys.executable, str(kept.path)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert again.returncode == FAILED, again.stdout + again.stderr
    ends(FAILED, *words(kernel, "two", 2, 1), "--database", "one/examples", app=app)
    assert [one.message for one in failures.kept(tmp_path / "two")] == [kept.message]


def test_the_same_seed_draws_the_same_cases_of_a_right_kernel(tmp_path: Path, kernel: str) -> None:
    digests = []
    for name, seed in (("one", 1), ("two", 1), ("three", 2)):
        ends(0, *words("right_step:adapter", name, seed, 30), said=f"seed {seed};", app=app)
        digests.append(json.loads((tmp_path / name / "parts.jsonl").read_text())["digest"])
    assert digests[0] == digests[1] != digests[2]


def test_an_operation_that_the_adapter_lacks_is_refused(kernel: str) -> None:
    ends(REFUSED, "--adapter", kernel, "--operation", "conv.*", said="UnknownCase", app=app)
