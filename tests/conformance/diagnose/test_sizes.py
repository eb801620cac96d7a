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
            "of 10 numbers of tokens (t) from 1 to 33 all up to 15 pass, and of the others only 24",
        ),
        ([1, 2, 3], [], ""),
        ([], [1, 2], ""),
    ],
)
def test_what_separates_the_sizes(fails: list[int], passes: list[int], says: str) -> None:
    told = rule(fails, passes, "t", "tokens")
    assert told == says


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
        (lambda t: True, ""),
    ],
)
def test_a_threshold_or_a_block_of_a_kernel_is_told(wrong: Callable[[int], bool], says: str) -> None:
    (found,) = diagnosed(Bug(partial(scanned, wrong), "conv.scan", ()))
    told = found.facts.get("sizes", "")
    assert says in told if says else "tokens" not in told
    assert "or more tokens" not in found.facts.get("cases", "") or says
