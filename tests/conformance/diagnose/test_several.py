"""Two bugs in one operation are told apart: each has its own diagnosis. One bug, however it is named, has one."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from conformance.adapters import reference
from conformance.diagnose.observe import observe
from conformance.report.failure_groups import grouped
from conformance.run import causes
from conformance.suite import find
from conformance.suite.expected import Expected
from ssmspec_ref import conv, ssd
from ssmspec_ref.contract import Capability, NumericContract
from ssmspec_ref.shapes import Array

from .invented import Bug, diagnosed, single

Inputs = Callable[[Any, Any], tuple[Any, Any]]
Outputs = Callable[[Array, Array, Array], tuple[Array, Array]]


def late_B(window: Any, params: Any) -> tuple[Any, Any]:
    return replace(window, B=np.concatenate([window.B[:, :1], window.B[:, :-1]], axis=1)), params


def tiled_groups(window: Any, params: Any) -> tuple[Any, Any]:
    heads, groups = window.x.shape[2], window.B.shape[2]
    own = np.arange(heads) % groups
    return replace(window, B=window.B[:, :, own], C=window.C[:, :, own]), params


def no_limit(window: Any, params: Any) -> tuple[Any, Any]:
    return window, replace(params, dt_limit=(0.0, float("inf")))


def odd_batch(S: Array, y: Array, S_next: Array) -> tuple[Array, Array]:
    """The last of an odd number of rows is not computed."""
    if len(y) > 1 and len(y) % 2:
        y[-1], S_next[-1] = 0.0, S[-1]
    return y, S_next


def scan(before: Sequence[Inputs], after: Sequence[Outputs], S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    for change in before:
        window, params = change(window, params)
    y, S_next = ssd.scan(S, window, params)
    for spoil in after:
        y, S_next = spoil(S, y, S_next)
    return single(y, S_next)


LATE = "as if token i read B of token i - 1"
TILED = "as if head h read group h mod g"
PAIRS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "each is seen alone": (partial(scan, (late_B, tiled_groups), ()), LATE, TILED),
    "one is in every case": (partial(scan, (late_B, no_limit), ()), LATE, "as if dt_limit were left out"),
    "inputs and outputs": (partial(scan, (late_B,), (odd_batch,)), LATE, "y is 0 where it is wrong"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_two_bugs_are_two_groups_and_each_names_its_cause(name: str) -> None:
    run, *words = PAIRS[name]
    groups = grouped(diagnosed(Bug(run, "ssd.scan", ())))
    assert len(groups) == 2, [group.first.facts for group in groups]
    told = [group.first.facts["behaves"] for group in groups]
    assert all(any(said.startswith(word) for said in told) for word in words), told
    assert all("of 2 that the suite can tell apart" in group.first.facts["bug"] for group in groups)
    assert len({group.first.smallest for group in groups}) == 2


def keeps_too_many(M: Array, u: Array, advanced: Array) -> Array:
    """One bug that has two names: one token more is kept, and in a batch of equal rows that is the largest of all."""
    return single(conv.commit(M, u, np.minimum(advanced + 1, u.shape[1])))[0]


PROCESS = next(one.capabilities for one in reference.adapter().subjects if "acceptance.process" in one.capabilities)


def next_token(logits: Array, prompt: Array, output: Array, temperature: float, *rest: Any) -> Array:
    """At temperature 0 the token after the best one is taken: so few values are moved that they show other patterns too."""
    p = PROCESS["acceptance.process"].run(logits, prompt, output, temperature, *rest)
    return single(p if temperature else np.roll(p, 1, axis=1))[0]


@pytest.mark.parametrize(
    ("run", "operation"),
    [
        (next_token, "acceptance.process"),
        (keeps_too_many, "conv.commit"),
        (partial(scan, (), (odd_batch,)), "ssd.scan"),
        (partial(scan, (late_B,), ()), "ssd.scan"),
    ],
)
def test_one_bug_is_one_group(run: Callable[..., Any], operation: str) -> None:
    (found,) = diagnosed(Bug(run, operation, ()))
    assert "bug" not in found.facts


def test_a_search_that_breaks_keeps_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*given: object) -> None:
        raise AssertionError("a bug of the suite")

    monkeypatch.setattr(causes, "causes_apart", breaks)
    found = list(diagnosed(Bug(partial(scan, (late_B,), ()), "ssd.scan", ())))
    assert found
    assert all(causes.SEARCH_BROKE in one.facts["search"] for one in found)
    assert all("a bug of the suite" in one.facts["search"] for one in found)
    assert all(LATE in one.facts["behaves"] for one in found)


def test_a_case_whose_expected_values_overflow_is_not_observed() -> None:
    """Options that a search combines need not fit each other; a judge of tabled cases refuses such a reference."""
    specification, case = find("ssd.step/b1,g1,h1,p1,n1/plain/gentle/s4")

    def overflows(*given: Any) -> list[Expected]:
        return [replace(want, value=np.full_like(want.value, np.inf)) for want in specification.expect(*given)]

    capability = Capability(lambda S, token, params: single(*ssd.step(S, token, params)), NumericContract())
    assert observe(replace(specification, expect=overflows), capability, case) is None
    assert observe(specification, capability, replace(case, seed=5)) is not None
