"""The same call many times in a new process: which of the calls are wrong says whether their number decides."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ssmspec_ref.contract import Capability, Verdict
from ssmspec_ref.errors import SpecError

from ...cases import Case
from ...judge.clock import Clock
from ...judge.verdict import LEFT_OVER, compare, expectation
from ...run.calls import bench_of
from ...run.sessions import opened
from ...suite.options.repeats import Often
from ...suite.specification import Specification
from ..extent import ordinal

CALLS, SECONDS, SHOWN = 300, 10.0, 3
"""Calls to make, the time for them, and wrong calls to list."""


def in_a_row(specification: Specification, capability: Capability, case: Case) -> str:
    """Which of many equal calls are wrong, in words; "" if all are, or none, or if the calls cannot be told apart."""
    if opened(case.operation):
        return ""
    renew: Callable[[], None] | None = getattr(bench_of(capability), "close", None)
    first, *rest = specification.draw(case, capability.contract)
    arguments = (replace(first, times=1) if isinstance(first, Often) else first, *rest)
    try:
        expected = expectation(specification, case, capability.contract, arguments, None)
    except SpecError:
        return ""
    if renew is not None:
        renew()
    wrong, clock, number = list[int](), Clock(SECONDS), 0
    for number in range(1, CALLS + 1):
        answer = bench_of(capability).start(specification, capability, arguments, False, False)()
        if answer.failed:
            return ""
        if compare(expected, answer.came.outputs, capability.contract).verdict is Verdict.FAIL:
            wrong.append(number)
        if clock.ended:
            break
    where = "in a new process" if renew is not None else "in this process, which made others before"
    return told(wrong, number, where)


def told(wrong: Sequence[int], made: int, where: str) -> str:
    """Which of the calls 1 to `made` are wrong."""
    if not wrong or len(wrong) == made:
        return ""
    if wrong[-1] == made and len(wrong) == made - wrong[0] + 1:
        if wrong[0] == 2:
            return f"call 1 {where} is right, and every later one with the same inputs is wrong, {LEFT_OVER}"
        which = f"every call from {wrong[0]} on is wrong"
    else:
        *shown, last = map(str, wrong[:SHOWN])
        listed = f"{', '.join(shown)} and {last}" if shown else last
        if len(wrong) > SHOWN:
            listed = ", ".join([*shown, last, ".."])
        steps = np.unique([after - before for before, after in pairwise(wrong)])
        every = f", every {ordinal(int(steps[0]))}" if len(steps) == 1 and steps[0] > 1 else ""
        which = f"call{'s' * (len(wrong) > 1)} {listed} {'are' if len(wrong) > 1 else 'is'} wrong{every}"
    right = f"{made - len(wrong)} with the same inputs are right"
    return f"of {made} calls {where} {which}, and {right}: it depends on the number of earlier calls in the process"
