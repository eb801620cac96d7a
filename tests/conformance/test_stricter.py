"""A contract that is wider than what is computed is told, and no failure; one that says what is computed is not."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from conformance.faults.recurrences.arithmetic import right, rounded, tf32
from conformance.judge.draw import stored
from conformance.judge.stricter import asked
from conformance.report.grid import wider
from conformance.report.matrix import summary
from conformance.report.stream import Result, header
from conformance.run.known import read_known
from conformance.run.results import Setting
from conformance.run.runner import Outcome, run
from ssmspec_ref import ssd
from ssmspec_ref.contract import Capability, NumericContract

from .judging import FP32, planned


def outcome(function: Any, contract: NumericContract, operation: str = "ssd.scan", tier: str = "smoke") -> Outcome:
    jobs, left_out = planned({operation: Capability(function, contract)}, tier, operation=operation)
    jobs = [job for job in jobs if asked(job.specification, job.case)]
    return run(jobs, left_out, Setting({"x": read_known("x")}))


def stored_once(S: Any, window: Any, params: Any) -> Any:
    """A state that is stored in bf16 when a call ends."""
    y, S_next = right(S, window, params)
    return y, stored(S_next, "bf16").astype(np.float32)


def narrow_every_token(S: Any, window: Any, params: Any) -> Any:
    """A state that is stored in bf16 after every token."""
    outputs = []
    for t in range(window.x.shape[1]):
        y, S = ssd.step(S, window.token(t), params)
        S = stored(S, "bf16")
        outputs.append(y)
    return rounded(np.stack(outputs, axis=1), S)


OFTEN = replace(FP32, state="bf16", stored_every_token=True)


def unexpected(results: Sequence[Result]) -> list[Result]:
    """What does not pass, but for options that an adapter must ask for."""
    return [
        one for one in results if one.verdict != "pass" and not (one.verdict == "inapplicable" and "slots=" in one.reason)
    ]


@pytest.mark.parametrize(
    ("function", "contract", "tier", "said"),
    [
        (right, replace(FP32, dot="bf16"), "smoke", "dot=ieee"),
        (right, replace(FP32, accumulate="bf16"), "smoke", "accumulate=fp32"),
        (right, replace(FP32, function_ulp=1000.0), "smoke", "ulp=2.5"),
        (right, replace(FP32, softplus="log"), "standard", "softplus=log1p"),
        (right, replace(FP32, softplus_threshold=4.0), "standard", "softplus above 20 is x"),
        (stored_once, OFTEN, "standard", "a state stored once a call"),
    ],
)
def test_a_field_that_is_declared_wider_than_what_is_computed_is_told(
    function: Any, contract: NumericContract, tier: str, said: str
) -> None:
    found = outcome(function, contract, tier=tier)
    assert unexpected(found.results) == []
    (line,) = wider(found.results)
    assert line.startswith(f"x: x, declared {contract}, would also hold under {said}: ssd.scan (")


def masked(S: Any, window: Any, params: Any, live: Any) -> Any:
    return tf32(S, window, params, live)


def test_what_computes_as_it_declares_is_not_told() -> None:
    done = outcome(masked, replace(FP32, dot="tf32"), "ssd.scan_masked")
    assert done.green
    assert wider(done.results) == []
    done = outcome(narrow_every_token, OFTEN, tier="standard")
    assert unexpected(done.results) == []
    assert wider(done.results) == []


@pytest.mark.parametrize(
    "other",
    [{"verdict": "fail"}, {"verdict": "pass", "stricter": {"dot=ieee": False}}],
    ids=["a case fails", "a case would fail"],
)
def test_one_case_against_it_is_enough_to_say_nothing(other: dict[str, Any]) -> None:
    named = dict.fromkeys(("adapter", "subject", "contract", "operation", "case"), "ssd.scan")
    said = [Result(**named, verdict="pass", stricter={"dot=ieee": True}) for _ in range(5)]
    assert len(wider(said)) == 1
    assert wider([*said, Result(**named, **other)]) == []
    assert wider(said[:2]) == []


def test_the_report_says_it_and_stays_green() -> None:
    told = ["would also hold under dot=ieee: ssd.scan (", "Nothing failed."]
    console, found = Console(record=True, width=200), outcome(right, replace(FP32, dot="bf16"))
    head = header("smoke", {"x": "1"}, "cpu")
    console.print(summary(head, found.results, "here"))
    shown = console.export_text()
    assert all(line in shown for line in told)
