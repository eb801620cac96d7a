"""Which order of evaluation a form declares, and the convention of an angle that is kept: as the page of contracts says."""

from dataclasses import replace
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.diagnose.facts import facts
from conformance.judge.verdict import judge
from conformance.report.failure_groups import FailureGroup
from conformance.report.reading import reading
from ssmspec_ref import delta, error_bounds, mamba3, ssd
from ssmspec_ref.contract import FLOAT64, Capability, Limits, NumericContract, Verdict
from ssmspec_ref.error_bounds import compare
from ssmspec_ref.shapes import Array
from tests.reports import diagnosis

from .judging import SPECIFICATION

PAGE = " ".join((Path(__file__).parents[2] / "docs/reference/contract.md").read_text(encoding="utf-8").split())
STEP_SIZE, DRAWS = 2.0**-10, 200
STRONGEST, WEAKEST = 0.1, 1e-6
"""Log decays of a token: small, so that the state of which a decay is wrong is still there."""


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


def loses_a_decay(S: Array, window: Any, params: ssd.SSDParams) -> tuple[Array, Array]:
    """The same, whose state is not decayed by the first token: a planted fault."""
    later = replace(window, dt=np.where(np.arange(window.dt.shape[1])[:, None] == 0, 0.0, window.dt))
    (y, after), (_, kept) = associative(S, window, params), associative(S, replace(later, x=0 * later.x), params)
    lost = kept * (1 - np.exp(window.dt[:, 0] * params.A))[..., None, None]
    return y, after + lost.astype(np.float32)


def drawn(seed: int) -> tuple[Array, ssd.SSDWindow, ssd.SSDParams]:
    """A state ten times its updates, 2 to 128 tokens of one decay of the range; all is exact in single precision."""
    rng = np.random.default_rng(seed)
    tokens, rate = int(rng.integers(2, 129)), np.exp(rng.uniform(np.log(WEAKEST), np.log(STRONGEST)))
    x, B, C = (rng.standard_normal((1, tokens, 1, n)).astype(np.float32).astype(float) for n in (3, 2, 2))
    S = 10 * rng.standard_normal((1, 1, 3, 2)).astype(np.float32).astype(float)
    window = ssd.SSDWindow(x, np.full((1, tokens, 1), STEP_SIZE), B, C)
    return S, window, ssd.SSDParams(np.array([-np.float32(rate / STEP_SIZE)], dtype=float), None, None, False)


def share(order: Any, seed: int, run: Any = associative) -> float:
    """The largest error of a scan as a share of the bound of an order; infinite for what is no number."""
    given = drawn(seed)
    bounds = error_bounds.ssd.scan(*given, NumericContract(order=order))
    return max(
        compare(one, want, bound.error).utilisation
        for one, want, bound in zip(run(*given), ssd.scan(*given), bounds, strict=True)
    )


def test_an_associative_scan_whose_exp_leans_is_right_in_its_order_and_not_in_the_chunked_one() -> None:
    worst = np.array([[share(order, seed) for order in ("associative", "sequential", "chunked")] for seed in range(DRAWS)])
    assert np.all(worst[:, :2] <= 1)
    assert np.sum(worst[:, 2] > 1) > 10
    assert worst[:, 2].max() > 2
    assert "`associative` multiplies decays" in PAGE


def test_a_decay_that_is_lost_is_caught_in_the_associative_order() -> None:
    caught = [share("associative", seed, loses_a_decay) > 1 for seed in range(DRAWS)]
    assert np.mean(caught) > 0.5


SCAN = SPECIFICATION["ssd.scan"]


def told(run: Any, order: Any, seeds: range, sizes: dict[str, int]) -> list[str]:
    """What the report says of the order of a scan: once for each seed."""
    specification = replace(SCAN, draw=lambda case, contract: drawn(case.seed))
    capability, said = Capability(run, NumericContract(order=order)), []
    for seed in seeds:
        case = replace(SCAN.case(sizes, {}, "gentle", seed), seed=seed)
        judged = judge(specification, capability, case)
        found = facts(specification, capability, case, [case], [], seed, search=False)
        assert (judged.verdict is Verdict.FAIL) == bool(found.get("values")), "a hint beside a failure, and no pass"
        said.append(found.get("order", ""))
    return said


HINT = "holds under order=associative; declare it if the scan multiplies decays"


def test_a_failure_names_the_order_under_which_it_would_hold() -> None:
    seeds = range(40)
    failing = [seed for seed in seeds if share("chunked", seed) > 1]
    said = told(associative, "chunked", seeds, {"t": 64})
    assert len(failing) > 3
    assert [seed for seed, words in zip(seeds, said, strict=True) if words == HINT] == failing
    made = diagnosis(facts={"values": "y: expected 1, got 2", "order": HINT})
    assert ("order", HINT) in reading(FailureGroup((made,))).first


def test_no_order_is_named_where_none_explains_the_failure() -> None:
    """A sum of the decays of all tokens in bf16, which no order allows."""

    def narrow(*given: Any) -> tuple[Array, Array]:
        y, S = associative(*given)
        return y * np.float32(1.01), S

    assert told(narrow, "chunked", range(3), {"t": 64}) == [""] * 3


@pytest.mark.parametrize("order", ["associative"])
def test_the_delta_rule_refuses_the_order_in_one_line(order: Any) -> None:
    found = SPECIFICATION["delta.scan"]
    case = next(iter(found.cases("smoke", Limits())))
    judged = judge(found, Capability(delta.scan, replace(FLOAT64, order=order)), case)
    assert judged.verdict is Verdict.UNKNOWN
    assert "the delta rule has no order associative" in judged.message
    assert "\n" not in judged.message


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


def solved(A: Array, R: Array) -> Array:
    """(I + A) U = R by forward substitution, in single precision."""
    U = np.zeros_like(R)
    for t in range(len(R)):
        U[t] = R[t] - A[t, :t] @ U[:t]
    return U


def by_powers(A: Array, R: Array) -> Array:
    """The same by the inverse (I - A)(I + A^2)(I + A^4) .., in single precision."""
    one, power, count = np.eye(len(A), dtype=np.float32), A @ A, 2
    inverse = one - A
    while count < len(A):
        inverse, power, count = inverse @ (one + power), power @ power, 2 * count
    return inverse @ R


@pytest.mark.parametrize(("solve", "least", "most"), [(solved, 0.0, 0.01), (by_powers, 1e10, 1e13)])
def test_an_inverse_by_powers_is_beyond_the_bound_where_keys_are_equal(solve: Any, least: float, most: float) -> None:
    """64 equal keys, beta = 1, no decay: the delta rule as one chunk."""
    rng, tokens, n = np.random.default_rng(0), 64, 16
    drawn_v, key, S, q = (rng.standard_normal(shape).astype(np.float32) for shape in ((tokens, 4), n, (n, 4), (tokens, n)))
    k = np.broadcast_to(key / np.linalg.norm(key), (tokens, n)).astype(np.float32)
    window = delta.DeltaWindow(
        *(a[None, :, None].astype(float) for a in (q, k, drawn_v)), np.zeros((1, tokens, 1)), np.ones((1, tokens, 1))
    )
    params = delta.DeltaParams(l2_norm=False, scale=1.0)
    bound, _ = error_bounds.delta.scan(S[None, None].astype(float), window, params, NumericContract(order="chunked"))
    U = solve(np.tril(k @ k.T, -1), drawn_v - k @ S)
    share = float(np.max(np.abs(q @ S + np.tril(q @ k.T) @ U - bound.value[0, :, 0]) / bound.error[0, :, 0]))
    assert least <= share <= most
    assert "the output is 1e11 times its bound off" in PAGE
    assert "entries up to 4.7e17" in PAGE
    assert round(comb(62, 31) / 1e17, 1) == 4.7, "the largest entry of a power of the matrix of ones below the diagonal"


def test_an_angle_of_1024_in_bf16_has_neighbours_more_than_a_turn_apart() -> None:
    assert (1024 * 2.0**-7) == 8 > mamba3.TURN
    assert int(np.ceil(1024 / mamba3.TURN)) == 163
    assert "after 163 turns, neighbours in bf16 are 8 apart" in PAGE
