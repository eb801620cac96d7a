"""The limits that an adapter declares: a range of sizes that holds none is refused where it is written."""

import pytest

from ssmspec_ref.contract import Limits
from ssmspec_ref.errors import ParameterError

from .refusals import refused


@pytest.mark.parametrize("pair", [(0, 0), (0, 5), (5, 3), (-1, 1), (2, 1)])
def test_limits_within_which_no_size_is_are_refused_with_what_is_needed(pair: tuple[int, int]) -> None:
    refused(
        ParameterError,
        rf"axis t are {pair[0]} to {pair[1]}, and no size is within; give the smallest",
        Limits,
        sizes={"b": (1, 2), "t": pair},
    )


def test_limits_of_one_size_or_of_many_are_taken() -> None:
    assert Limits(sizes={"t": (1, 1), "w": (2, 4)}).sizes["w"] == (2, 4)
