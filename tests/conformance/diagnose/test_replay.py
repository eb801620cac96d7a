"""A failure is run again before its line is printed; what only earlier calls bring about says so, and its line has them."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.judge.shrink import alike_failures
from conformance.judge.verdict import Judgement
from conformance.report.stream import read_report
from ssmspec_ref.contract import Verdict

ROOT = Path(__file__).parents[3]
CARRIES = """
import numpy as np
from ssmspec_ref import ssd
from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject

calls = 0

def scan(S, window, params):
    global calls
    calls += 1
    y, S_next = ssd.scan(S, window, params)
    return ((1.5 if calls > FREE else 1.0) * y).astype(np.float32), S_next.astype(np.float32)

FREE = {free}

def adapter():
    return Adapter("carries", "1", (Subject("kernel", {{"ssd.scan": Capability(scan, NumericContract())}}),))
"""


def conform(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
    command = [sys.executable, "-m", "conformance", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)


def test_what_depends_on_earlier_calls_says_so_and_its_line_fails_again(tmp_path: Path) -> None:
    (tmp_path / "carries.py").write_text(CARRIES.format(free=5))
    words = ("--tier", "smoke", "--adapter", "carries:adapter", "--report", "report")
    done = conform(tmp_path, "run", *words)
    assert done.returncode == 1
    assert "depends on earlier calls: it passes alone in a new process, and fails after the" in done.stdout
    (found,) = read_report(tmp_path / "report").diagnoses
    assert "every call from 6 on is wrong" in found.facts["calls"]
    line = shlex.split(found.rerun)
    assert "--before" in line
    again = conform(tmp_path, *line[line.index("run") :])
    assert again.returncode == 1, again.stdout + again.stderr
    alone = [word for at, word in enumerate(line) if "--before" not in (word, line[at - 1])]
    assert conform(tmp_path, *alone[alone.index("run") :]).returncode == 0


def test_a_failure_that_needs_nothing_before_it_says_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "carries.py").write_text(CARRIES.format(free=0))
    done = conform(tmp_path, "run", "--tier", "smoke", "--adapter", "carries:adapter")
    assert done.returncode == 1
    assert "depends on earlier calls" not in done.stdout
    assert "--before" not in done.stdout
    assert "number of earlier calls" not in done.stdout
    assert "every wrong value of y is 1.5 times what it must be" in done.stdout


LEFT = """
import numpy as np
from ssmspec_ref import ssd
from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject

left = [0.0]

def scan(S, window, params):
    y, S_next = ssd.scan(S, window, params)
    y, left[0] = y + max(left[0] - 5.0, 0.0), left[0] + 1.0
    return y.astype(np.float32), S_next.astype(np.float32)

def adapter():
    return Adapter("left", "1", (Subject("kernel", {"ssd.scan": Capability(scan, NumericContract())}),))
"""


def test_the_first_line_and_the_values_are_of_the_same_calls(tmp_path: Path) -> None:
    """From the seventh call on a growing number is added to y: two calls of one case are never wrong by the same."""
    (tmp_path / "left.py").write_text(LEFT)
    conform(tmp_path, "run", "--adapter", "left:adapter", "--tier", "smoke", "--report", "report")
    (found,) = read_report(tmp_path / "report").diagnoses
    assert "depends on earlier calls" in found.facts["replay"]
    assert found.output is not None
    expected, got = map(float, found.facts["values"].partition("expected ")[2].split(", got "))
    assert found.output.got - found.output.expected == pytest.approx(got - expected, rel=1e-5)
    assert "passes" not in found.facts


def test_cases_before_one_need_the_one(tmp_path: Path) -> None:
    (tmp_path / "carries.py").write_text(CARRIES.format(free=0))
    done = conform(tmp_path, "run", "--adapter", "carries:adapter", "--before", "x")
    assert done.returncode == 2
    assert "it names what runs before one case; omit it, or give --case" in done.stderr


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("ValueError: a | k.py:3 f(x) | k.py:9 g(x | y)", "ValueError: b | k.py:4 f(x) | k.py:9 g(x | y)", True),
        ("ValueError: a | k.py:3 f() | k.py:9 g()", "with the inputs of seed 7: ValueError: b | k.py:9 g()", True),
        ("ValueError: a | k.py:3 f(x) | k.py:9 g(x)", "ValueError: a | k.py:3 f(x) | k.py:8 h(x)", False),
        ("ValueError: a | k.py:3 f(x) | k.py:9 g(x)", "IndexError: a | k.py:3 f(x) | k.py:9 g(x)", False),
    ],
)  # fmt: skip
def test_the_smallest_case_keeps_the_type_and_the_place_of_an_exception(one: str, other: str, alike: bool) -> None:
    assert alike_failures(*(Judgement(Verdict.FAIL, "error", said) for said in (one, other))) is alike
