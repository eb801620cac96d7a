"""A wrong limit is told with the right value; what was not run is short, and counted in cases."""

from pathlib import Path

from conformance.report.stream import read_report
from tests.commands import done

SMOKE = ("--adapter", "mine:adapter", "--tier", "smoke")
MINE = """
import numpy as np
from ssmspec_ref import conv, ssd
from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject

def commit(M, u, advanced):
    return conv.commit(M, u, advanced).astype(np.float32)

def scan(S, window, params):
    y, S_next = ssd.scan(S, window, params)
    return y.astype(np.float32), S_next.astype(np.float32)

def adapter():
    narrow = Limits(options={"advanced": ("some",)}, sizes={}, reason="nothing else is needed")
    kinds = Limits(options=OPTIONS, reason="no such option")
    first = Subject("window", {"conv.commit": Capability(commit, NumericContract(), narrow)}, absent={"ssd": "not written"})
    second = Subject("scan", {"ssd.scan": Capability(scan, NumericContract(), kinds)})
    return Adapter("mine", "0.1", (first, second))

OPTIONS = {}
"""


def test_a_limit_that_is_nearly_one_is_told_with_the_right_value(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE.replace("OPTIONS = {}", 'OPTIONS = {"softplus": ("onn",)}'))
    done("run", *SMOKE, folder=tmp_path, cwd=tmp_path, said="limits softplus=onn, which no case has (did you mean 'on'?)")


def test_what_was_not_run_is_short_and_counted_in_cases(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    ran = done("run", *SMOKE, folder=tmp_path, cwd=tmp_path, code=0)
    absent = [line for line in ran.stdout.splitlines() if line.startswith("mine: ") and " tested; " in line]
    assert len(absent) == 1, "one line for what no subject offers"
    results = read_report(tmp_path / "conformance-report").results
    (partly,) = [r for r in results if r.outside]
    assert (partly.operation, partly.verdict) == ("conv.commit", "inapplicable")
    assert 0 < partly.outside < 10
    assert f"inapplicable: {partly.outside} case" in ran.stdout
    assert "about " in ran.stderr, "an estimate, off a terminal too"
