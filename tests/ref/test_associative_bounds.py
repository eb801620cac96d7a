"""Bounds of the order `associative`: products of decays that lean as far as a contract lets them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ssmspec_ref import delta, error_bounds, mamba3, selective, ssd
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.error_bounds import windows
from ssmspec_ref.error_bounds.arithmetic import Approx, exact
from ssmspec_ref.errors import Unsupported
from ssmspec_ref.shapes import Array
from tests.families import Sizes, mamba3_case
from tests.low_precision import FP32, Machine, used

from .test_bounds_from_below import ROWS, Leaning, drawn
from .test_error_bounds_kills import make_case

TOKENS = 9
SCAN = NumericContract(order="associative")


def scanned(m: Leaning, a: Array, U: Array, S: Array, up: bool) -> Array:
    """The states (rows t) of S' = a S + U over pairs (decay, update): by doubling, or from the first token to the last."""
    if not up:
        states = []
        for t in range(a.shape[1]):
            S = m.add(m.mul(a[:, t], S), U[:, t])
            states.append(S)
        return np.stack(states, axis=1)
    step = 1
    while step < a.shape[1]:
        U = np.concatenate([U[:, :step], m.add(m.mul(a[:, step:], U[:, :-step]), U[:, step:])], axis=1)
        a = np.concatenate([a[:, :step], m.mul(a[:, step:], a[:, :-step])], axis=1)
        step *= 2
    return m.add(m.mul(a, S[:, None]), U)


def leaning(kind: str, contract: NumericContract, up: bool, decay: float) -> float:
    """The largest share of a bound that a scan of one channel with one state uses; dt is as given."""
    m = Leaning(contract, np.random.default_rng(5))
    x, B, C = (drawn(m.rng, TOKENS) for _ in range(3))
    dt, S = 2.0 ** m.rng.integers(-2, 1, (ROWS, TOKENS)), 100 * drawn(m.rng)
    U = m.mul(m.mul(dt, x), B)
    states = scanned(m, m.exp(m.mul(dt, -decay + 0 * dt)), U, S, up)
    y, left = m.mul(states, C), states[:, -1]
    if kind == "ssd":
        window: Any = ssd.SSDWindow(x[..., None, None], dt[..., None], B[..., None, None], C[..., None, None])
        params: Any = ssd.SSDParams(np.array([-decay]), None, None, False)
        pairs = error_bounds.ssd.scan(S[:, None, None, None], window, params, contract)
        return max(used(y[..., None, None], pairs[0]), used(left[:, None, None, None], pairs[1]))
    window = selective.SelectiveWindow(*(v[..., None] for v in (x, dt, B, C)))
    params = selective.SelectiveParams(np.array([[-decay]]), None, None, False)
    pairs = error_bounds.selective.scan(S[:, None, None], window, params, contract)
    return max(used(y[..., None], pairs[0]), used(left[:, None, None], pairs[1]))


@pytest.mark.parametrize("kind", ["ssd", "selective"])
@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("decay", [1e-5, 0.4])
def test_products_that_lean_the_worst_way_stay_within_the_bound_and_nearly_reach_it(
    kind: str, up: bool, decay: float
) -> None:
    assert 0.8 < leaning(kind, SCAN, up, decay) <= 1 + 1e-6
    assert leaning(kind, replace(SCAN, accumulate="bf16", state="bf16", io="bf16"), up, decay) <= 1


@pytest.mark.parametrize("kind", ["ssd", "selective"])
def test_the_charge_for_the_factors_is_needed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the error of one exp for a product, as `chunked` of SSD has it, a right scan would fail."""

    def once(z: Approx, ancestors: Array) -> tuple[Approx, Approx]:
        return windows.decays(replace(z, contract=replace(z.contract, order="chunked")), ancestors)

    monkeypatch.setattr(windows, "products", once)
    assert leaning(kind, SCAN, True, 1e-5) > 2


@pytest.mark.parametrize("z", [(-30.0,) * 5, (-100.0, -0.5, -0.5, -0.01), (-0.001,) * 9, (-800.0, -1.0), (0.0, -3.0, 0.0)])
@pytest.mark.parametrize("flushes", [False, True])
def test_a_product_in_single_precision_is_within_its_bound_below_the_normal_range_too(
    z: tuple[float, ...], flushes: bool
) -> None:
    contract = replace(FP32, order="associative", ftz=flushes)
    chain = windows.chain(1, len(z))
    given = exact(np.array(z)[None, :, None], contract)
    from_state, between = windows.products(given, chain)
    a = np.exp(np.array(z, dtype=np.float32))
    a = np.where(a < 2.0**-126, 0, a) if flushes else a
    for t in range(len(z)):
        for j in range(-1, t + 1):
            left = right = np.float32(1)
            for one, other in zip(a[j + 1 : t + 1], a[j + 1 : t + 1][::-1], strict=True):
                left, right = (v * w for v, w in ((left, one), (right, other)))
                if flushes:
                    left, right = (np.float32(0) if v < 2.0**-126 else v for v in (left, right))
            pair = from_state[:, t] if j < 0 else between[:, t, j]
            assert max(used(np.array([[v]]), pair) for v in (left, right)) <= 1
    assert not np.any(between.error[0, np.arange(len(z)), np.arange(len(z))]), "a product of nothing is 1"


def test_tokens_without_a_decay_add_no_error() -> None:
    z = exact(np.array([[-0.5, 0.0, 0.0, -0.25]])[..., None], SCAN)
    two = exact(np.array([[-0.5, -0.25]])[..., None], SCAN)
    many, few = (windows.products(x, windows.chain(1, x.value.shape[1]))[0].error[0, -1, 0] for x in (z, two))
    assert many == few > 0


@pytest.mark.parametrize("chunk", [None, 4])
def test_a_decay_of_mamba3_that_is_one_percent_off_is_beyond_the_bound(chunk: int | None) -> None:
    S, window, params = mamba3_case(22, Sizes(b=1, t=9), "mamba")
    contract = replace(FP32, order="associative", chunk=chunk)
    pairs, stepped = (error_bounds.mamba3.scan(S, window, params, c) for c in (contract, FP32))
    wrong = mamba3.scan(S, replace(window, A=window.A * np.where(np.arange(9) == 4, 1.01, 1)[:, None]), params)
    for bound, own, came in zip(pairs, stepped, wrong, strict=True):
        assert used(came, bound) > 1
        assert np.median(bound.error) < 3 * np.median(own.error)


def test_the_delta_rule_has_no_such_order_and_says_so() -> None:
    ones = np.ones((1, 2, 1, 3))
    window = delta.DeltaWindow(ones, ones, ones, -np.ones((1, 2, 1)), np.ones((1, 2, 1)))
    given: Any = np.ones((1, 1, 3, 3)), window
    for run in (
        lambda c: error_bounds.delta.scan(*given, delta.DeltaParams(), c),
        lambda c: error_bounds.delta.tree(*given, windows.chain(1, 2), delta.DeltaParams(), c),
    ):
        with pytest.raises(Unsupported, match=r"the delta rule has no order associative: .* declare sequential"):
            run(SCAN)


def test_blocks_of_a_scan_are_one_association_too() -> None:
    """A scan in blocks of 3 tokens, whose state goes from block to block, is within the bound of the whole window."""
    for kind in ("ssd", "selective"):
        for seed in range(3):
            case = make_case(kind, seed, "gentle", replace(FP32, order="associative"))
            assert case.utilisation(*case.run(Machine(replace(FP32, order="associative", chunk=3)))) <= 1
