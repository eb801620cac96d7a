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
        ([33, 34, 64], [1, 16, 31, 32], "of 7 numbers of tokens (t) from 1 to 64 all from 33 on fail, and all up to 32 pass"),
        (
            [16, 32, 48],
            [1, 8, 15, 17, 24, 33, 47],
            "of 10 numbers of tokens (t) from 1 to 48 only those fail that are multiples of 16",
        ),
        (
            [15, 31, 47],
            [1, 7, 11, 16, 17, 23],
            "of 9 numbers of tokens (t) from 1 to 47 only those fail that are one less than a multiple of 16",
        ),
        ([1, 2, 3, 5, 9], [4, 8, 16], "of 8 numbers of tokens (t) from 1 to 16 only those pass that are multiples of 4"),
        ([5, 9, 13], [1, 4, 6, 7, 8, 10, 12, 14], ""),
        ([7], [1, 5, 6, 8, 9, 14], "of 7 numbers of tokens (t) from 1 to 14 only 7 fails"),
        ([3, 4], [5, 6, 7, 8], "of 6 numbers of tokens (t) from 3 to 8 all up to 4 fail, and all from 5 on pass"),
        (
            [16, 17, 18, 20, 31, 33],
            [1, 8, 15, 24],
            "of 10 numbers of tokens (t) from 1 to 33 all up to 15 pass, and those above fail, but for 24",
        ),
        (
            [33, 34, 35, 65, 66, 67],
            [1, 16, 31, 32, 64, 96],
            "of 12 numbers of tokens (t) from 1 to 96 all up to 32 pass, and those above fail, "
            "but for multiples of 32 (64, 96)",
        ),
        ([2], [1, 3, 4, 5], "of 5 numbers of tokens (t) from 1 to 5 only 2 fails"),
        ([1, 2], [3, 4, 5], "of 5 numbers of tokens (t) from 1 to 5 all up to 2 fail, and all from 3 on pass"),
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
        (lambda t: t > 32, "all from 33 on fail, and all up to 32 pass"),
        (lambda t: t % 16 == 0, "only those fail that are multiples of 16"),
        (lambda t: t % 16 == 1, "only those fail that are 1 more than a multiple of 16"),
        (lambda t: t > 32 and t % 32 != 0, "all up to 32 pass, and those above fail, but for multiples of 32 (64, 96"),
        (lambda t: t % 32 != 0, "only those pass that are multiples of 32"),
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
    assert alone.endswith("from 1 to 16 all from 5 on fail, and all up to 4 pass")
    beside = facts(specification, replace(capability, run=tiles), smallest, [smallest, other], [])["sizes"]
    assert beside.endswith(f"{alone} (not so with other sizes or options: {two} fails)"), beside
