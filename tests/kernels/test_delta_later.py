"""What is no number in a token of a window of the delta rule: what it may reach, as `delta_window` declares it."""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch

from ssmspec_kernels.delta import delta_chunked as by_products
from ssmspec_kernels.delta.delta_scan import delta_scan
from ssmspec_kernels.delta.ring import delta_buffered as of_rings
from tests.kernels import delta_cases as cases
from tests.kernels import delta_rings as rings
from tests.kernels.delta_plot import Options
from tests.kernels.mutants import mutated

LATER = 3
O = Options(b=2, t=5, g=2, h=4, k=32, v=32, io="bf16")
PER_HEAD = {"v", "g", "beta"}
KEYS = ["k", "v", "g", "beta"]


def of_ring(module: ModuleType, **named: Any) -> torch.Tensor:
    """A window behind an empty ring."""
    out: torch.Tensor = module.delta_buffered(ring=rings.ring_of(O, 16, torch.bfloat16), **named)
    return out


def outputs(launcher: Callable[..., torch.Tensor], poisoned: str = "") -> torch.Tensor:
    """Those of a window, NaN in one argument of one token: of row 0 and its first head, of keys or of values."""
    case = cases.draw(O, padding=False)
    if poisoned:
        getattr(case, poisoned)[0, LATER, 0] = float("nan")
    case.call(launcher)
    return case.out.float()


def reached(launcher: Callable[..., torch.Tensor], poisoned: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs of the heads of row 0 that the argument belongs to, as they were and as they are.

    All others keep their bits, and the token's own outputs are no numbers.
    """
    clean, found = outputs(launcher), outputs(launcher, poisoned)
    if not clean.isfinite().all():
        raise LookupError("outputs are not finite before anything is planted")
    heads = 1 if poisoned in PER_HEAD else O.h // O.g
    assert torch.equal(clean[1], found[1]), f"NaN in {poisoned} of row 0 reached row 1"
    assert torch.equal(clean[0, :, heads:], found[0, :, heads:]), f"NaN in {poisoned} left its head"
    own = found[0, LATER, :heads].isnan()
    assert bool(own.all()), f"NaN in {poisoned} of token {LATER} is not in its own output"
    return clean[0, :, :heads], found[0, :, :heads]


@pytest.mark.parametrize("poisoned", ["q", *KEYS])
def test_a_scan_keeps_the_tokens_before(poisoned: str) -> None:
    clean, found = reached(delta_scan, poisoned)
    assert torch.equal(clean[:LATER], found[:LATER])


@pytest.mark.parametrize("two_launches", [False, True])
def test_queries_of_a_window_by_products_are_read_for_their_own_token(two_launches: bool) -> None:
    clean, found = reached(partial(by_products.delta_chunked, two_launches=two_launches), "q")
    others = [t for t in range(O.t) if t != LATER]
    assert torch.equal(clean[others], found[others])


def check_kept_or_nan(launcher: Callable[..., torch.Tensor], poisoned: str) -> None:
    """No output is another number: that would be taken for right."""
    clean, found = reached(launcher, poisoned)
    assert bool((found.isnan() | (found == clean)).all()), f"NaN in {poisoned} changed a number of its window"
    assert bool(found[LATER:].isnan().all()) or poisoned == "q", f"NaN in {poisoned} is lost behind its token"


@pytest.mark.parametrize("two_launches", [False, True])
@pytest.mark.parametrize("poisoned", KEYS)
def test_a_window_by_products_is_nan_or_what_it_was(poisoned: str, two_launches: bool) -> None:
    check_kept_or_nan(partial(by_products.delta_chunked, two_launches=two_launches), poisoned)


@pytest.mark.parametrize("poisoned", ["q", *KEYS])
def test_a_window_behind_a_ring_is_nan_or_what_it_was(poisoned: str) -> None:
    check_kept_or_nan(partial(of_ring, of_rings), poisoned)


GATES = "g_t, beta_t = gates(g_t, beta_t, decay, bias, A)\n    g_t = tl.where(real, g_t, 0.0)"
LOST = [
    (GATES, GATES + "\n    beta_t = tl.where(beta_t == beta_t, beta_t, 0.0)", "beta"),
    (GATES, GATES.replace("real, g_t", "g_t == g_t, g_t"), "g"),
    ("tl.where(own, column[:, None] * line[None, :], 0.0)", "column[:, None] * line[None, :]", "g"),
]


@pytest.mark.parametrize(("old", "new", "poisoned"), LOST, ids=["beta lost", "g lost", "another head reached"])
def test_a_planted_loss_of_what_is_no_number_is_caught(old: str, new: str, poisoned: str) -> None:
    mutant = mutated(by_products, old, new)
    with pytest.raises(AssertionError, match="NaN in"):
        check_kept_or_nan(partial(mutant.delta_chunked, two_launches=True), poisoned)
