"""Which sizes of an axis fail is told: from a size on, multiples of a block, exactly one; and nothing if all of them fail."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from conformance.diagnose.probes import rule
from ssmspec_ref import conv
from ssmspec_ref.shapes import Array

from .invented import Bug, diagnosed, single


@pytest.mark.parametrize(
    ("fails", "passes", "says"),
    [
        (
            [33, 34, 64],
            [1, 16, 31, 32],
            "fails with 33 and more tokens (t), passes with 32 and fewer (7 sizes tried, 1 to 64)",
        ),
        ([16, 32, 48], [1, 8, 15, 17, 24, 33, 47], "fails where the number of tokens (t) is a multiple of 16"),
        ([15, 31, 47], [1, 7, 11, 16, 17, 23, 32], "fails where the number of tokens (t) is one less than a multiple of 16"),
        ([5, 9, 13], [1, 4, 6, 7, 8, 10, 12, 14], ""),
        ([7], [1, 5, 6, 8, 9, 14], "fails with exactly 7 tokens (t), passes with all others (7 sizes tried, 1 to 14)"),
        ([3, 4], [5, 6, 7, 8], "fails with 4 and fewer tokens (t), passes with 5 and more"),
        ([16, 17, 18, 20, 31, 33], [1, 8, 15, 24], "fails with most from 16 tokens (t) on, passes with 15 and fewer"),
        ([1, 2, 3], [], ""),
        ([], [1, 2], ""),
    ],
)
def test_what_separates_the_sizes(fails: list[int], passes: list[int], says: str) -> None:
    told = rule(fails, passes, "t", "tokens")
    assert told.startswith(says) if says else not told


def scanned(wrong: Callable[[int], bool], M: Array, x: Array, params: Any) -> Any:
    """The last token has no activation where the number of tokens is `wrong`."""
    y, M_next = conv.scan(M, x, params)
    if wrong(x.shape[1]):
        y[:, -1] += 1.0
    return single(y, M_next)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda t: t > 32, "fails with 33 and more tokens (t), passes with 32 and fewer"),
        (lambda t: t % 16 == 0, "fails where the number of tokens (t) is a multiple of 16"),
        (lambda t: True, ""),
    ],
)
def test_a_threshold_or_a_block_of_a_kernel_is_told(wrong: Callable[[int], bool], says: str) -> None:
    (found,) = diagnosed(Bug(partial(scanned, wrong), "conv.scan", ()))
    told = found.facts.get("sizes", "")
    assert told.startswith(says) if says else "tokens" not in told
    assert "or more tokens" not in found.facts.get("cases", "") or says
