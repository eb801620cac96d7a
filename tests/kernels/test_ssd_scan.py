"""The SSD scan: against the oracle within its bound, exactly, in its bytes, and what it must not touch."""

from types import ModuleType

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.ssd import ssd_scan as kernel
from ssmspec_ref import ssd
from tests.kernels import ssd_cases as cases
from tests.kernels.mutants import mutated
from tests.kernels.ssd_cases import Options

COVER = [
    Options(),
    Options(D="channel", z=True, poison=7.0),
    Options(t=1, io="bf16", state="bf16", h=2, D="channel", z=True, seed=1),
    Options(t=5, io="bf16", gentle=True, p=9, n=33, g=1, limit=(0.05, 0.8), seed=2, poison=3.0),
    Options(t=4, live=True, io="fp16", state="fp16", z=True, D="", seed=3),
    Options(t=3, live=True, state="bf16", g=1, h=3, p=5, n=16, softplus=False, bias=False, limit=(0.1, 0.7), seed=4),
    Options(t=4, io="bf16", live=True, gentle=True, bias=False, g=4, p=16, n=8, seed=5, poison=2.0),
    Options(b=1, t=32, gentle=True, g=1, h=2, p=4, n=6, seed=6),
    Options(b=2, t=2, h=2, g=1, p=3, n=1, seed=7),
]


def check_bound(module: ModuleType, o: Options) -> None:
    """Output and state within the bound; nothing else of the pool, of the output, or of any input has changed."""
    case, fresh = cases.draw(o), cases.draw(o)
    y, S = case.bound()
    before = case.before()
    assert case.call(module.ssd_scan, block_p=16) is case.out
    cases.assert_within("y", case.out, y, case.rows)
    cases.assert_within("S", case.S, S, case.named)
    case.S[case.named], case.out[case.rows] = fresh.S[case.named], fresh.out[case.rows]
    cases.unchanged(before)


def check_exact(module: ModuleType, o: Options) -> None:
    case, window, params, S = cases.exact(o)
    y, S_next = ssd.scan(S, window, params)
    case.call(module.ssd_scan, block_p=16)
    assert torch.equal(case.out, torch.from_numpy(y).to(case.out.dtype))
    assert np.array_equal(cases.doubles(case.S)[case.slots.numpy()], S_next)


def check_bytes(module: ModuleType, o: Options, write: bool) -> None:
    case = cases.draw(o, padding=False)
    named = {name: getattr(case, name) for name in ("S", "x", "dt", "B", "C", "out")}
    params = {name: x for name, x in case.extra.items() if name != "z"} | {"A": case.A, "slots": case.slots}
    gate = {"z": case.extra["z"]} if o.z else {}
    with watch(**named, **params, **gate) as seen:
        case.call(module.ssd_scan, write_state=write, block_p=8)
    left_out = sum(seen.loaded(name).distinct for name in params)
    sizes = {"state": case.S.element_size(), "io": case.x.element_size()}
    states = o.b * o.h * o.p * o.n * sizes["state"]
    expected = module.traffic_bytes(o.b, o.t, o.h, o.p, o.n, o.g, **sizes, write_state=write, z=o.z)
    assert seen.distinct_bytes() - left_out == expected
    assert seen.loaded("S").requested == states
    assert seen.stored("S").requested == (states if write else 0)
    assert seen.outside == seen.races == []


@pytest.mark.parametrize("o", COVER, ids=str)
def test_output_and_state_lie_within_the_bound_and_nothing_else_is_written(o: Options) -> None:
    check_bound(kernel, o)


@pytest.mark.parametrize("o", [Options(t=7, p=3, n=5), Options(t=4, p=6, n=9, io="bf16", g=1, seed=1)], ids=str)
def test_integers_come_out_exactly(o: Options) -> None:
    check_exact(kernel, o)


STEPS = [
    Options(t=5, live=True, z=True),
    Options(t=4, io="bf16", gentle=True, D="channel"),
    *(Options(b=2, t=4, p=p, n=n, gentle=True, seed=p) for p in (3, 20, 64) for n in (8, 16, 128)),
]


@pytest.mark.parametrize("o", STEPS, ids=str)
def test_a_window_is_its_tokens_one_by_one_bit_for_bit(o: Options) -> None:
    together, single = cases.draw(o), cases.draw(o)
    together.call(kernel.ssd_scan, fused=False)
    for t in range(o.t):
        cut = slice(t, t + 1)
        named = {name: x[:, cut] for name, x in single.extra.items() if name in ("live", "z")} | {"fused": False}
        kernel.ssd_scan(
            single.S, single.x[:, cut], single.dt[:, cut], single.A, single.B[:, cut], single.C[:, cut], slots=single.slots,
            out=single.out[:, cut], **{**single.extra, **named},
        )  # fmt: skip
    assert cases.untouched(together.S, single.S)
    assert cases.untouched(together.out, single.out)


@pytest.mark.parametrize("tiles", [(4, 8), (16, 32), (32, 4)])
def test_outputs_and_states_do_not_depend_on_the_tiles_but_for_the_order_of_sums(tiles: tuple[int, int]) -> None:
    o = Options(t=2, z=True, D="channel")
    case = cases.draw(o)
    y, S = case.bound()
    case.call(kernel.ssd_scan, block_p=tiles[0], run=tiles[1], num_warps=1)
    cases.assert_within("y", case.out, y, case.rows)
    cases.assert_within("S", case.S, S, case.named)


def test_one_token_has_a_narrow_tile_where_its_lanes_hold_as_much_as_in_the_wide_one() -> None:
    assert kernel.tile(64, 1, 128, 4) == kernel.tile(64, 1, 64, 2) == (4, 1)
    for n, size in (16, 4), (21, 2), (32, 2):
        assert kernel.tile(64, 1, n, size) == kernel.tile(64, 4, n, size) == (16, 1)


def test_a_window_of_no_ops_leaves_the_state_bit_for_bit_and_outputs_zero() -> None:
    case = cases.draw(Options(t=3, live=True, gentle=True), padding=False)
    case.extra["live"].zero_()
    before = cases.whole(case.S).clone()
    y = case.call(kernel.ssd_scan)
    assert cases.untouched(before, cases.whole(case.S))
    assert torch.equal(y, torch.zeros_like(y))


def test_without_the_final_state_the_output_is_the_same_and_rows_may_share_one() -> None:
    case, other = cases.draw(Options(t=4), padding=False), cases.draw(Options(t=4), padding=False)
    before = cases.whole(case.S).clone()
    case.call(kernel.ssd_scan, write_state=False, fused=False)
    assert cases.untouched(before, cases.whole(case.S))
    other.call(kernel.ssd_scan, fused=False)
    assert torch.equal(case.out, other.out)
    shared = cases.draw(Options(t=4), padding=False)
    shared.slots.fill_(int(shared.slots[0]))
    assert torch.isfinite(shared.call(kernel.ssd_scan, write_state=False)).all()


def test_rows_without_slots_have_their_own_number() -> None:
    case, other = cases.draw(Options(), padding=False), cases.draw(Options(), padding=False)
    case.slots.copy_(torch.arange(3))
    case.S[:3] = 1.0
    other.S[:3] = 1.0
    assert torch.equal(case.call(kernel.ssd_scan, fused=False), other.call(kernel.ssd_scan, fused=False, slots=None))


def test_a_step_that_is_nan_shows_although_it_is_limited() -> None:
    case = cases.draw(Options(t=2, limit=(0.01, 0.5)), padding=False)
    case.dt[1, 1, 2] = float("nan")
    y = case.call(kernel.ssd_scan)
    assert torch.isnan(y[1, 1, 2]).all()


@pytest.mark.parametrize(
    "o", [Options(b=2, p=11, z=True), Options(b=1, t=1, io="bf16", state="bf16", n=16), Options(b=2, t=5, g=1, h=2)], ids=str
)
@pytest.mark.parametrize("write", [True, False])
def test_bytes_equal_the_formula_and_the_state_is_read_once(o: Options, write: bool) -> None:
    check_bytes(kernel, o, write)


def check_all(module: ModuleType) -> None:
    for o in (COVER[1], COVER[6], COVER[4], COVER[5], COVER[0], COVER[3]):
        check_bound(module, o)
    check_bytes(module, Options(b=1, h=2), True)


FAULTS = [
    ("((p < P) |", "((p < P - 1) |", "state_rows"),
    ("((n < N) |", "((n < N + 1) |", "state_rows"),
    ("if slot >= 0:", "if slot > 0:", None),
    ("if slot >= 0:", "if slot != -2:", None),
    ("g = h // HEADS_PER_GROUP", "g = h % HEADS_PER_GROUP", None),
    ("at_x = x + b * stride.x.b", "at_x = x + b * stride.x.t", None),
    ("decay = tl.load(A + h)", "decay = tl.load(A)", None),
    ("tl.store(at_S, state", "tl.store(at_S + 1, state", None),
    ("        if WRITE_STATE:\n", "        if not WRITE_STATE:\n", None),
    ("tl.exp(steps * decay)", "tl.exp2(steps * decay)", None),
    ("        y_t = tl.sum(tl.sum(state * C_t", "        y_t = tl.sum(tl.sum(state * B_t", None),
    ("tl.fma(skip, x_t, y_t)", "tl.fma(skip, x_t * step, y_t)", None),
    ("        in_n &= real\n", "", None),
    ("h * stride.S.h + (row_p.", "h * stride.S.h + ((row_p // 2 * 2).", None),
    ("tl.minimum(t + 1, T - 1)", "t", None),
    ("tl.where(i == t, values", "tl.where(i == 0, values", None),
    ("        if T > 1:\n", "        if T > 4:\n", None),
    ("    if SOFTPLUS:\n", "    if not SOFTPLUS:\n", "step_size"),
    ("tl.maximum(step, low,", "tl.maximum(step, 0.0,", "step_size"),
    ("tl.minimum(above, high,", "tl.minimum(above, low,", "step_size"),
    ("return tl.where(real, step, 0.0)", "return step", "step_size"),
    ("step = raw.to(tl.float32) + bias", "step = (raw + bias).to(tl.bfloat16).to(tl.float32)", "step_size"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[new for _, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str | None) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_all(mutant)


def test_planted_rounding_of_the_state_between_tokens_is_caught_by_its_bound() -> None:
    """Eleven bits of the state, as a tf32 product would keep: less than a bf16 output shows."""
    after = "        y_t = tl.sum(tl.sum(state"
    mutant = mutated(kernel, after, "        state = state.to(tl.float16).to(tl.float32)\n" + after)
    with pytest.raises(AssertionError):
        check_bound(mutant, Options(t=2, gentle=True, io="bf16"))
