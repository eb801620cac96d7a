"""The suite inside pytest: another project's session, run for real."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from conformance.report.stream import read_report
from tests.commands import PLACES, ROOT, holds

KERNELS = """
import numpy as np
from ssmspec_ref import conv
from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject

def commit(M, u, advanced):
    return conv.commit(M, u, np.minimum(advanced + WRONG, u.shape[1])).astype(np.float32)

WRONG = {wrong}

def adapter():
    subject = Subject("window", {{"conv.commit": Capability(commit, NumericContract())}})
    return Adapter("mine", "0.1", (subject,), homepage="")
"""
KNOWN = '[[known]]\ncase = "*"\nreason = "keeps a draft"\nlink = "https://example.org/1"\nexpires = 2999-01-01\n'


ADAPTER = ("--ssmspec-adapter", "my_kernels:adapter", "--ssmspec-tier", "smoke")
REPORTED = (*ADAPTER, "--ssmspec-report", "report")


def session(
    folder: Path, code: int, *words: str, said: Any = (), wrong: Any = 0, path: bool = True, kernels: str = KERNELS
) -> str:
    """What pytest prints in another project, with the plugin and nothing else of ours; end and words are checked."""
    (folder / "my_kernels.py").write_text(kernels.format(wrong=wrong))
    (folder / "test_own.py").write_text("def test_own():\n    pass\n")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -p no:cacheprovider\nfilterwarnings = error\n")
    folders = [*([str(folder)] if path else []), *PLACES]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(folders),
        "COLUMNS": "120",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # the kernels change within a second, and keep their size
    command = [sys.executable, "-m", "pytest", "-p", "conformance.plugin", "-p", "xdist.plugin", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    holds(done.stdout + done.stderr, said)
    return done.stdout


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]["pytest11"]
    assert declared == {"ssmspec": "conformance.plugin"}


def test_every_case_is_a_test_behind_the_projects_own(tmp_path: Path) -> None:
    said = (
        "test_own.py::test_own PASSED",
        "ssmspec::mine::window::fp32/sequential::conv.commit/b2,t7,c6,w4/plain/normal/s0 PASSED",
        "operations is tested; the others are not offered",
    )
    shown = session(tmp_path, 0, "-v", *REPORTED, said=said)
    holds(shown, f"{1 + sum(bool(r.case) for r in read_report(tmp_path / 'report').results)} passed")
    assert (tmp_path / "report" / "report.html").exists()


def test_a_failing_case_is_a_failed_test_with_its_account(tmp_path: Path) -> None:
    shown = session(tmp_path, 1, *REPORTED, said=("M is wrong by", "rerun   "), wrong=1)
    assert "conformance/judge/verdict.py" not in shown, "no traceback through the suite"
    whole = read_report(tmp_path / "report")
    (way,) = [d for d in whole.diagnoses if d.operation == "conv.commit"]
    assert way.failures == whole.footer.verdicts["fail"] > 2


RAISES = """
import numpy as np
from ssmspec_ref import ssd
from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject

def step(S, token, params):
    if token.z is not None:
        raise ValueError("no gate")
    return tuple(a.astype(np.float32) for a in ssd.step(S, token, params))

def adapter():
    return Adapter("mine", "0.1", (Subject("kernel", {{"ssd.step": Capability(step, NumericContract())}}),))
"""


def test_what_passes_in_the_session_says_which_option_a_case_raises_for(tmp_path: Path) -> None:
    words = (*ADAPTER[:2], "--ssmspec-explain", "none")
    said = 'if it does not take z=on, declare limits=Limits({"z": ("off",)})'
    session(tmp_path, 1, *words, said=said, kernels=RAISES)


def test_a_listed_failure_is_expected_and_one_that_passes_fails(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(KNOWN)
    words = (*ADAPTER, "--ssmspec-known", "known.toml", "-k", "commit and plain")
    session(tmp_path, 0, *words, said="xfailed", wrong=1)
    session(tmp_path, 1, *words)


def test_workers_judge_and_one_report_is_written(tmp_path: Path) -> None:
    cases = []
    for words in (("-n", "2"), ()):
        session(tmp_path, 1, *words, *REPORTED, wrong=1)
        cases.append(sorted((r.case, r.verdict) for r in read_report(tmp_path / "report").results))
    assert cases[0] == cases[1]


def test_a_mistake_is_one_of_usage_with_workers_too(tmp_path: Path) -> None:
    said = "UnknownAdapter: 'no_such' is neither a module in this folder or on PYTHONPATH"
    session(tmp_path, pytest.ExitCode.USAGE_ERROR, "-n", "1", "--ssmspec-adapter", "no_such", said=said)


def test_a_module_of_the_working_folder_is_found_and_a_folder_that_is_none_told(tmp_path: Path) -> None:
    words = ("--ssmspec-adapter", "mine_here:adapter", "--ssmspec-report", "test_own.py")
    (tmp_path / "mine_here.py").write_text(KERNELS.format(wrong=0))
    said = "ReportError: test_own.py cannot be written"
    shown = session(tmp_path, pytest.ExitCode.USAGE_ERROR, *words, said=said, path=False)
    assert "passed" not in shown, "no case runs whose report could not be written"


def test_without_its_option_nothing_of_ours_is_imported(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import sys\n\ndef pytest_unconfigure(config):\n"
        "    ours = sorted(m for m in sys.modules if m.split('.')[0] in ('conformance', 'ssmspec_ref', 'numpy', 'rich'))\n"
        "    print('\\nIMPORTED', ours)\n"
    )
    session(tmp_path, 0, "-s", said=("1 passed", "IMPORTED ['conformance', 'conformance.plugin']"))


INTERRUPTS = "type('Now', (), {'__array_ufunc__': None, '__radd__': lambda *_: __import__('signal').raise_signal(2)})()"
"""Ctrl-C as soon as it is added to an array: in the first case."""


@pytest.mark.usefixtures("heeds_interrupts")
@pytest.mark.parametrize("some", [False, True], ids=["all cases", "some cases"])
def test_an_interrupted_session_leaves_nothing_green_of_the_one_before(tmp_path: Path, some: bool) -> None:
    """A session of some cases writes to a folder of its own, so that it leaves the report of all as it is."""
    session(tmp_path, 0, *REPORTED)
    made = ("report.jsonl", "report.html", "junit.xml", "badge.svg")
    before = {name: (tmp_path / "report" / name).read_bytes() for name in made}
    chosen = ["-k", "commit and plain"] if some else []
    session(tmp_path, pytest.ExitCode.INTERRUPTED, *REPORTED, *chosen, wrong=INTERRUPTS)
    if some:
        assert {name: (tmp_path / "report" / name).read_bytes() for name in made} == before
    else:
        assert all("unfinished" in (tmp_path / "report" / name).read_text() for name in made[1:])
        assert (tmp_path / "report" / "report.jsonl").read_bytes() == b""
