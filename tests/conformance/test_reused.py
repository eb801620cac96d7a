"""Where a NaN comes from is said; what is right by chance is not told as a rule."""

from typing import Any

import numpy as np
import pytest

from conformance.cases import Case
from conformance.diagnose.together import together
from conformance.faults.catalogue import of_name
from conformance.judge.verdict import GAPS, NEVER_READ
from ssmspec_ref import ssd
from ssmspec_ref.shapes import Array

from .judging import fails, judged


def compactly(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """Reads x as if it were compact."""
    compact = np.empty(token.x.shape).strides
    x = np.lib.stride_tricks.as_strided(token.x, token.x.shape, compact)
    return ssd.step(S, type(token)(**{**vars(token), "x": np.array(x)}), params)


def test_a_nan_between_the_elements_of_an_input_is_told() -> None:
    fails(judged(compactly, "ssd.step/b2,g2,h6,p5,n4/plain/gentle/s1"), "nan", GAPS)


def test_a_nan_of_what_is_never_read_is_told() -> None:
    case = "ssd.step/b5,g2,h6,p5,n4/dead=nan,slots=fresh/gentle/s0"
    fails(judged(of_name("step_cleared_by_product").capability, case), "nan", NEVER_READ.format("nan"))


@pytest.mark.parametrize(("bad", "said"), [(range(3), False), (range(40), True)], ids=["chance", "rule"])
def test_a_rule_that_chance_gives_is_not_told(bad: range, said: bool) -> None:
    """All that fail have an option that half of all cases have: three may by chance, forty do not."""
    cases = [Case("ssd.step", {"b": 1}, {"z": "on" if n < 45 else "off"}, "gentle", n) for n in range(90)]
    told = together([cases[n] for n in bad], [case for n, case in enumerate(cases) if n not in bad])
    assert ("z=on" in told) is said
