"""Which sizes of an axis fail is told: from a size on, multiples of a block, exactly one; and nothing if all of them fail."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from conformance.diagnose.changes.rules import rule
from conformance.diagnose.facts import facts
from conformance.suite import find
from ssmspec_ref import conv
from ssmspec_ref.contract import Capability, NumericContract
from ssmspec_ref.shapes import Array

from .invented import Bug, diagnosed, single


@pytest.mark.parametrize(
    ("fails", "passes", "says"),
    [
        ([33, 34, 64], [1, 16, 31, 32], "tokens (t): 33 and more fail, up to 32 pass (7 tried, 1 to 64)"),
        (
            [16, 32, 48],
            [1, 8, 15, 17, 24, 33, 47],
            "tokens (t): only multiples of 16 fail (10 tried, 1 to 48)",
        ),
        (
            [15, 31, 47],
            [1, 7, 11, 16, 17, 23],
            "tokens (t): only sizes one less than a multiple of 16 fail (9 tried, 1 to 47)",
        ),
        ([1, 2, 3, 5, 9], [4, 8, 16], "tokens (t): only multiples of 4 pass (8 tried, 1 to 16)"),
        ([5, 9, 13], [1, 4, 6, 7, 8, 10, 12, 14], ""),
        ([7], [1, 5, 6, 8, 9, 14], "tokens (t): only 7 fails (7 tried, 1 to 14)"),
        ([3, 4], [5, 6, 7, 8], "tokens (t): up to 4 fail, 5 and more pass (6 tried, 3 to 8)"),
        (
            [16, 17, 18, 20, 31, 33],
            [1, 8, 15, 24],
            "tokens (t): 16 and more fail, except 24; up to 15 pass (10 tried, 1 to 33)",
        ),
        (
            [33, 34, 35, 65, 66, 67],
            [1, 16, 31, 32, 64, 96],
            "tokens (t): 33 and more fail, except multiples of 32 (64, 96); up to 32 pass (12 tried, 1 to 96)",
        ),
        ([2], [1, 3, 4, 5], "tokens (t): only 2 fails (5 tried, 1 to 5)"),
        ([1, 2], [3, 4, 5], "tokens (t): up to 2 fail, 3 and more pass (5 tried, 1 to 5)"),
        ([1, 2, 3], [], ""),
        ([], [1, 2], ""),
    ],
)
def test_what_separates_the_sizes(fails: list[int], passes: list[int], says: str) -> None:
    told = rule(fails, passes, "t", "tokens")
    assert (told.says if told else "") == says
    assert told is None or (all(map(told.fails, fails)) and not any(map(told.fails, passes)))


@pytest.mark.parametrize(
    ("fails", "passes", "further"),
    [
        ([1, 17], [2, 3, 4, 5, 8, 9, 16], (33, 34, 41)),
        ([5], [1, 2, 6], (4, 10, 9)),
        ([33, 34], [1, 32], (64, 66)),
        ([1, 17], [32, 64], (33, 65)),
        ([5, 14], [1, 2, 3, 4, 8, 9, 16, 17], ()),
    ],
)
def test_further_sizes_would_refute_a_rule(fails: list[int], passes: list[int], further: tuple[int, ...]) -> None:
    """Two sizes of 5 and 14 are no place in a block of 9: they were found among many numbers."""
    told = rule(fails, passes, "t", "tokens")
    assert (told.further if told else ()) == further


def scanned(wrong: Callable[[int], bool], M: Array, x: Array, params: Any) -> Any:
    """The last token has no activation where the number of tokens is `wrong`."""
    y, M_next = conv.scan(M, x, params)
    if wrong(x.shape[1]):
        y[:, -1] += 1.0
    return single(y, M_next)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda t: t > 32, "33 and more fail, up to 32 pass"),
        (lambda t: t % 16 == 0, "only multiples of 16 fail"),
        (lambda t: t % 16 == 1, "only sizes 1 more than a multiple of 16 fail"),
        (lambda t: t > 32 and t % 32 != 0, "33 and more fail, except multiples of 32 (64, 96"),
        (lambda t: t % 32 != 0, "only multiples of 32 pass"),
        (lambda t: True, ""),
    ],
)
def test_a_threshold_or_a_block_of_a_kernel_is_told(wrong: Callable[[int], bool], says: str) -> None:
    (found,) = diagnosed(Bug(partial(scanned, wrong), "conv.scan", ()))
    told = found.facts.get("sizes", "")
    assert says in told if says else "tokens" not in told
    assert "or more tokens" not in found.facts.get("cases", "") or says


def long_rows(M: Array, x: Array, params: Any) -> Any:
    """The last token is wrong if the input of any of the first 8 is large: with more tokens it is so more often."""
    y, M_next = conv.scan(M, x, params)
    if (x[0, :8, 0] > 0.7).any():
        y[0, -1] += 1.0
    return single(y, M_next)


def test_a_size_that_only_changes_how_often_the_values_are_met_is_no_limit() -> None:
    (found,) = diagnosed(Bug(long_rows, "conv.scan", ()))
    assert "tokens" not in found.facts.get("sizes", ""), found.facts


def tiles(M: Array, x: Array, params: Any) -> Any:
    """Two rows and more have tiles of half the tokens."""
    return scanned(lambda t: t > (4 if len(x) == 1 else 2), M, x, params)


def test_a_failing_case_that_a_rule_leaves_out_is_named_beside_it() -> None:
    one, two = (f"conv.scan/b{b},t{t},c1,w2/plain/normal/s0" for b, t in ((1, 5), (2, 3)))
    (specification, smallest), (_, other) = find(one), find(two)
    capability = Capability(partial(scanned, lambda t: t > 4), NumericContract())
    alone = facts(specification, capability, smallest, [smallest], [])["sizes"]
    assert "5 and more fail, up to 4 pass" in alone
    beside = facts(specification, replace(capability, run=tiles), smallest, [smallest, other], [])["sizes"]
    assert beside.endswith(f"{alone}, but with other sizes or options {two} fails too"), beside
