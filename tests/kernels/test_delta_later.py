"""What is no number in a token of a window of the delta rule: outputs before it keep their bits."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from ssmspec_kernels.delta_buffered import delta_buffered
from ssmspec_kernels.delta_chunked import delta_chunked
from ssmspec_kernels.delta_scan import delta_scan
from tests.kernels import delta_cases as cases
from tests.kernels import delta_rings as rings
from tests.kernels.delta_cases import Options

LATER = 3
O = Options(b=2, t=5, g=1, h=2, k=32, v=32, io="bf16")
INVERSE = "the inverse has 0 for what comes later, and 0 times NaN is NaN (docs/found.md)"
STANDS = pytest.mark.xfail(raises=AssertionError, strict=True, reason=INVERSE)


def of_ring(**named: Any) -> torch.Tensor:
    """A window behind an empty ring."""
    return delta_buffered(ring=rings.ring_of(O, 16, torch.bfloat16), **named)


def outputs(launcher: Callable[..., torch.Tensor], poisoned: str = "") -> torch.Tensor:
    """Those of a window, NaN in one argument of one of its tokens, in all rows."""
    case = cases.draw(O, padding=False)
    if poisoned:
        getattr(case, poisoned)[:, LATER] = float("nan")
    case.call(launcher)
    return case.out.float()


def check(launcher: Callable[..., torch.Tensor], poisoned: str) -> None:
    clean, found = outputs(launcher), outputs(launcher, poisoned)
    if not bool(found[:, LATER].isnan().all()):
        raise LookupError(f"NaN in {poisoned} of token {LATER} is not in its own output; plant it elsewhere")
    assert torch.equal(clean[:, :LATER], found[:, :LATER]), f"NaN in {poisoned} of token {LATER} reached a token before it"


@pytest.mark.parametrize("poisoned", ["q", "k", "v", "g", "beta"])
def test_a_scan_keeps_the_tokens_before(poisoned: str) -> None:
    check(delta_scan, poisoned)


@pytest.mark.parametrize("held", [False, True])
def test_queries_of_a_window_by_products_are_read_for_their_own_token(held: bool) -> None:
    check(partial(delta_chunked, held=held), "q")


@STANDS
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("poisoned", ["k", "v", "g", "beta"])
def test_a_window_by_products_keeps_the_tokens_before(poisoned: str, held: bool) -> None:
    check(partial(delta_chunked, held=held), poisoned)


@STANDS
@pytest.mark.parametrize("poisoned", ["q", "k", "v", "g", "beta"])
def test_a_window_behind_a_ring_keeps_the_tokens_before(poisoned: str) -> None:
    check(of_ring, poisoned)
