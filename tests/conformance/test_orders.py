"""Which order of evaluation a form declares, and the convention of an angle that is kept: as the page of contracts says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.judge.verdict import judge
from ssmspec_ref import error_bounds, mamba3, ssd
from ssmspec_ref.contract import FLOAT64, Capability, NumericContract, Verdict
from ssmspec_ref.shapes import Array

from .judging import SPECIFICATION

PAGE = " ".join((Path(__file__).parents[2] / "docs/reference/contract.md").read_text(encoding="utf-8").split())
RATES, STEP_SIZE = (1e-6, 1e-3, 0.1), 2.0**-10
"""Log decays of a token, and dt: small, so that the state is much larger than what is added to it."""


def leaning(x: Array) -> Array:
    """exp in single precision, 2 ulp (of 2^-23) high before it is rounded: 2.5 ulp are the default of a contract."""
    return (np.exp(np.asarray(x, dtype=np.float64)) * (1 + 2 * 2.0**-23)).astype(np.float32)


def associative(S: Array, window: Any, params: ssd.SSDParams) -> tuple[Array, Array]:
    """SSD over pairs (decay, update), combined by doubling, as JAX's associative_scan and CUB's block scan do."""
    x, dt, B, C = (np.moveaxis(a, 1, 0).astype(np.float32) for a in (window.x, window.dt, window.B, window.C))
    decay = leaning(dt * params.A.astype(np.float32))[..., None, None]
    update = (dt[..., None] * x)[..., None] * B[:, :, :, None, :]
    a, total = np.broadcast_to(decay, update.shape).copy(), update.copy()
    step = 1
    while step < len(a):
        total[step:] = total[step:] + a[step:] * total[:-step]
        a[step:] = a[step:] * a[:-step]
        step *= 2
    after = a * S.astype(np.float32) + total
    return np.moveaxis((after * C[:, :, :, None, :]).sum(axis=-1), 0, 1), after[-1]


def shares(order: Any, rate: float, tokens: int) -> float:
    """The largest error of the scan as a share of the bound of an order."""
    rng = np.random.default_rng(tokens)
    x, B, C = (rng.standard_normal((1, tokens, 1, n)).astype(np.float32).astype(float) for n in (3, 2, 2))
    S = 10 * rng.standard_normal((1, 1, 3, 2)).astype(np.float32).astype(float)
    window = ssd.SSDWindow(x, np.full((1, tokens, 1), STEP_SIZE), B, C)
    params = ssd.SSDParams(np.array([-np.float32(rate / STEP_SIZE)], dtype=float), None, None, False)
    bounds = error_bounds.ssd.scan(S, window, params, NumericContract(order=order))
    exact, came = ssd.scan(S, window, params), associative(S, window, params)
    return max(float(np.max(np.abs(one - want) / bound.error)) for one, want, bound in zip(came, exact, bounds, strict=True))


@pytest.mark.parametrize("tokens", [16, 64, 512])
@pytest.mark.parametrize("rate", RATES)
def test_an_associative_scan_is_within_the_bound_of_the_sequential_order(rate: float, tokens: int) -> None:
    assert shares("sequential", rate, tokens) <= 1


def test_the_chunked_order_is_none_that_an_associative_scan_may_declare() -> None:
    """There a decay is exp of a sum, with the error of one exp; here it is a product of as many as there are tokens."""
    assert shares("chunked", 1e-6, 64) > 2
    assert "An associative scan multiplies decays" in PAGE
    assert "declare it `sequential`" in PAGE


STEP = SPECIFICATION["mamba3.step"]


def unreduced(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
    """Mamba-3 whose angle runs on past 2 pi."""
    y, S_next = mamba3.step(S, token, params)
    sizes = token.x.shape[-1], token.angle.shape[-1], params
    before, after = mamba3.pieces_of(S, *sizes), mamba3.pieces_of(S_next, *sizes)
    turns = np.round((before.angle - after.angle) / mamba3.TURN)
    return y, mamba3.packed(replace(after, angle=after.angle + mamba3.TURN * turns))


def test_the_angle_of_mamba3_is_kept_modulo_two_pi() -> None:
    """It is named: an angle that runs on loses bits with every turn, so its error would have no bound."""
    cases = list(STEP.cases("smoke", Capability(mamba3.step, FLOAT64).limits))
    for run, verdict in ((mamba3.step, Verdict.PASS), (unreduced, Verdict.FAIL)):
        found = {judge(STEP, Capability(run, FLOAT64), case).verdict for case in cases if case.family == "gentle"}
        assert found == {verdict}
    assert "modulo 2 pi, in 0 .. 2 pi" in PAGE
