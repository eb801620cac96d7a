"""A failure in one of many equal calls says which of them, and the searches end in time and say so."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.diagnose.changes.needs import needs
from conformance.diagnose.earlier.calls import in_a_row, told
from conformance.diagnose.facts import facts
from conformance.judge.clock import Clock, limited
from conformance.judge.shrink import shrink
from conformance.judge.verdict import judge
from conformance.suite import find
from ssmspec_ref import ssd
from ssmspec_ref.contract import Capability, NumericContract
from ssmspec_ref.errors import SpecError
from ssmspec_ref.shapes import Array

from .invented import single

STEP = "ssd.step/b1,g1,h1,p1,n1/repeat=often/gentle/s0"


class EveryTenth:
    """A semaphore that wraps: the output of every tenth call is not written."""

    calls = 0

    def __call__(self, S: Array, token: Any, params: Any) -> tuple[Array, ...]:
        self.calls += 1
        y, S_next = ssd.step(S, token, params)
        return single(y * 0 if self.calls % 10 == 0 else y, S_next)


def without_D(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    return single(*ssd.step(S, token, replace(params, D=None)))


def test_the_wrong_calls_of_many_are_named_with_their_period() -> None:
    specification, case = find(STEP)
    said = in_a_row(specification, Capability(EveryTenth(), NumericContract()), case)
    assert "calls 10, 20, 30, .. are wrong, every 10th, and 270 with the same inputs are right" in said
    assert said.endswith("it depends on the number of earlier calls in the process")


def test_what_is_wrong_in_every_call_says_nothing_of_calls() -> None:
    specification, case = find(STEP)
    assert in_a_row(specification, Capability(without_D, NumericContract()), case) == ""


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([2, 3, 4, 5, 6], "call 1 here is right, and every later one with the same inputs is wrong, as if a call began from"),
        ([4, 5, 6], "every call from 4 on is wrong, and 3 with"),
        ([3, 6], "calls 3 and 6 are wrong, every 3rd, and 4 with"),
        ([5], "call 5 is wrong, and 5 with"),
        ([], ""),
        ([1, 2, 3, 4, 5, 6], ""),
    ],
)
def test_wrong_calls_in_words(wrong: list[int], says: str) -> None:
    assert says in told(wrong, 6, "here")
    assert bool(told(wrong, 6, "here")) is bool(says)


def past_22(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    y, S_next = ssd.scan(S, window, params)
    return single(np.where(np.arange(y.shape[1])[None, :, None, None] > 22, 0.0, y), S_next)


LONG = "ssd.scan/b2,t60,g1,h2,p2,n2/plain/gentle/s0"


def test_a_long_axis_shrinks_to_its_least_failing_size() -> None:
    specification, case = find(LONG)
    capability = Capability(past_22, NumericContract())
    smallest, _ = shrink(specification, capability, case, judge(specification, capability, case))
    assert smallest.sizes["t"] == 24
    assert smallest.size() == 24


def test_searches_end_in_time_and_say_so() -> None:
    specification, case = find(LONG)
    capability = Capability(past_22, NumericContract())
    clock = Clock(0)
    assert shrink(specification, capability, case, judge(specification, capability, case), clock=clock)[0] == case
    assert clock.says("the smallest case") == ["the search for the smallest case ended after 0 s of processor time"]
    assert needs(specification, capability, case, clock=Clock(0)) == ""
    with pytest.raises(SpecError, match="the time of this search is over"):
        limited(specification, Clock(0)).expected(specification.draw(case, capability.contract), capability.contract, None)


def test_a_search_that_ends_by_itself_says_nothing() -> None:
    specification, case = find("ssd.scan/b1,t24,g1,h1,p1,n1/plain/gentle/s0")
    assert "limits" not in facts(specification, Capability(past_22, NumericContract()), case, [case], [])
