"""The SSD window through matrix products: against the oracle within the bound of its order, exactly, in its bytes."""

from dataclasses import replace
from itertools import product
from types import ModuleType

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.ssd import ssd_window as kernel
from ssmspec_kernels.ssd.ssd_scan import traffic_bytes
from ssmspec_ref import ssd
from ssmspec_ref.errors import Unsupported
from tests.kernels import ssd_cases as cases
from tests.kernels.mutants import mutated
from tests.kernels.ssd_cases import Options
from tests.kernels.tensors import far

COVER = [
    Options(t=5, D="channel", z=True, poison=7.0),
    Options(t=6, io="bf16", gentle=True, g=1, p=35, n=33, limit=(0.05, 0.8), z=True, seed=1),
    Options(t=4, live=True, io="fp16", state="fp16", D="", seed=2),
    Options(t=17, live=True, state="bf16", io="bf16", h=2, g=1, p=5, n=16, softplus=False, bias=False, seed=3),
    Options(b=1, t=1, io="bf16", g=4, seed=4),
    Options(b=2, t=32, io="bf16", gentle=True, h=2, p=17, n=40, live=True, seed=5, poison=3.0),
]


def check_bound(module: ModuleType, o: Options, write: bool = True, **tiles: int) -> None:
    """Output and state within the bound; nothing else of the pool, of the output, or of any input has changed."""
    case, fresh = cases.draw(o), cases.draw(o)
    y, S = case.bound(order="output_only")
    before = case.before()
    assert case.call(module.ssd_window, write_state=write, **tiles) is case.out
    cases.assert_within("y", case.out, y, case.rows)
    if write:
        cases.assert_within("S", case.S, S, case.named)
        case.S[case.named] = fresh.S[case.named]
    case.out[case.rows] = fresh.out[case.rows]
    cases.unchanged(before)


def check_exact(module: ModuleType, o: Options) -> None:
    case, window, params, S = cases.exact(o)
    y, S_next = ssd.scan(S, window, params)
    case.call(module.ssd_window)
    assert torch.equal(case.out, torch.from_numpy(y).to(case.out.dtype))
    assert np.array_equal(cases.doubles(case.S)[case.slots.numpy()], S_next)


def check_bytes(module: ModuleType, o: Options, write: bool, **tiles: int) -> None:
    case = cases.draw(o, padding=False)
    named = {name: getattr(case, name) for name in ("S", "x", "dt", "B", "C", "out")}
    params = {name: x for name, x in case.extra.items() if name != "z"} | {"A": case.A, "slots": case.slots}
    gate = {"z": case.extra["z"]} if o.z else {}
    with watch(**named, **params, **gate) as seen:
        case.call(module.ssd_window, write_state=write, **tiles)
    left_out = sum(seen.loaded(name).distinct for name in params)
    sizes = {"state": case.S.element_size(), "io": case.x.element_size()}
    states = o.b * o.h * o.p * o.n * sizes["state"]
    expected = traffic_bytes(o.b, o.t, o.h, o.p, o.n, o.g, **sizes, write_state=write, z=o.z)
    assert seen.distinct_bytes() - left_out == expected
    assert seen.loaded("S").requested == states
    assert seen.stored("S").requested == (states if write else 0)
    assert seen.outside == seen.races == []


@pytest.mark.parametrize("o", COVER, ids=str)
def test_output_and_state_lie_within_the_bound_and_nothing_else_is_written(o: Options) -> None:
    check_bound(kernel, o)


@pytest.mark.parametrize("tiles", [(16, 16, 1, 1), (16, 32, 2, 3), (32, 64, 1, 2), (64, 64, 2, 1)], ids=str)
def test_every_split_of_the_channels_lies_within_the_bound(tiles: tuple[int, int, int, int]) -> None:
    block, program, heads, stages = tiles
    o = Options(t=5, p=50, io="bf16", D="channel", z=True, poison=2.0)
    for write in (True, False):
        check_bound(kernel, o, write, block_p=block, program_p=program, heads=heads, stages=stages)


@pytest.mark.parametrize("o", [Options(t=7, p=3, n=5), Options(t=4, p=6, n=9, io="bf16", g=1, seed=1)], ids=str)
def test_integers_come_out_exactly(o: Options) -> None:
    check_exact(kernel, o)


def check_window_tiles(module: ModuleType) -> None:
    """With many rows a program owns whole heads, in the fewest tiles of a size that a block of threads can have."""
    for p, t in product((16, 48, 64, 80, 128, 200), (4, 16, 17, 32)):
        if t <= 16 or p >= 64:
            block, program, heads, _, _ = module.window_tiles(4096, t, 8, p, True)
            assert block.bit_count() == 1
            assert 0 <= program - p < block
            assert program % block == 8 % heads == 0


def test_programs_of_many_rows_own_whole_heads() -> None:
    check_window_tiles(kernel)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('triton.cdiv(p, block) * block, run, row["warps"]', 'triton.cdiv(p, 63) * block, run, row["warps"]'),
        (
            'return block, triton.cdiv(p, block) * block, run, row["warps"]',
            'return 63, triton.cdiv(p, block) * block, run, row["warps"]',
        ),
        ("triton.cdiv(p, block) * block, run, 1", "triton.cdiv(p, block) * 15, run, 1"),
    ],
)
def test_planted_tiles_of_other_programs_are_caught(old: str, new: str) -> None:
    with pytest.raises(AssertionError):
        check_window_tiles(mutated(kernel, old, new))


def test_a_window_of_no_ops_leaves_the_state_bit_for_bit_and_outputs_zero() -> None:
    case = cases.draw(Options(t=3, live=True, gentle=True), padding=False)
    case.extra["live"].zero_()
    before = cases.whole(case.S).clone()
    y = case.call(kernel.ssd_window)
    assert cases.untouched(before, cases.whole(case.S))
    assert torch.equal(y, torch.zeros_like(y))


def check_strong_decays(module: ModuleType) -> None:
    """exp(G_i - G_j) of a pair that is not seen overflows; what is seen underflows to 0."""
    case = cases.draw(Options(t=9, softplus=False, bias=False), padding=False)
    case.A.fill_(-400.0)
    y, S = case.bound(order="output_only")
    case.call(module.ssd_window)
    cases.assert_within("y", case.out, y, case.rows)
    cases.assert_within("S", case.S, S, case.named)


def test_decays_beyond_the_range_of_exp_give_no_nan() -> None:
    check_strong_decays(kernel)


def check_last_token(module: ModuleType, io: str, after: int) -> None:
    """The last real token's weight in the state is its dt, exactly: what it adds to nothing is dt x B of powers of two."""
    case = cases.draw(Options(t=9, softplus=False, bias=False, io=io, live=True), padding=False)
    case.extra["live"].copy_((torch.arange(9) < 9 - after).expand(3, 9))
    case.A.fill_(-400.0)
    case.dt.copy_(torch.from_numpy(np.random.default_rng(5).uniform(0.02, 1.0, case.dt.shape)))
    for tokens in (case.x, case.B):
        tokens.copy_(torch.from_numpy(np.random.default_rng(6).choice([-2.0, -0.5, 1.0, 4.0], tokens.shape)))
    last = 8 - after
    case.x[:, :last] = 0.0
    case.C.fill_(1.0)
    case.S[case.slots.long()] = 0.0
    case.call(module.ssd_window)
    x, dt, B = (cases.doubles(u)[:, last] for u in (case.x, case.dt, case.B))
    added = dt[..., None, None] * x[..., None] * np.repeat(B, 2, axis=1)[:, :, None, :]
    assert np.array_equal(cases.doubles(case.S)[case.slots.numpy()], added)


@pytest.mark.parametrize("io", ["fp32", "bf16"])
@pytest.mark.parametrize("after", [0, 3])
def test_the_last_tokens_weight_is_its_dt_whatever_decays_came_before_and_however_many_no_ops_follow(
    io: str, after: int
) -> None:
    check_last_token(kernel, io, after)


@pytest.mark.parametrize(
    "total", ["tl.sum(tl.where(k[None, :] == head, lds, 0.0))", "tl.sum(tl.where(i == T - 2, G, 0.0), axis=0)"]
)
def test_planted_total_of_another_sum_is_caught_at_the_last_token(total: str) -> None:
    mutant = mutated(kernel, "tl.sum(tl.where(i == BLOCK_T - 1, G, 0.0), axis=0)", total)
    with pytest.raises(AssertionError):
        check_last_token(mutant, "fp32", 0)


def test_rows_without_slots_have_their_own_number_and_rows_may_share_a_state_that_is_only_read() -> None:
    case, other = cases.draw(Options(), padding=False), cases.draw(Options(), padding=False)
    case.slots.copy_(torch.arange(3))
    case.S[:3] = 1.0
    other.S[:3] = 1.0
    assert torch.equal(case.call(kernel.ssd_window), other.call(kernel.ssd_window, slots=None))
    other.slots.fill_(2)
    assert torch.equal(other.call(kernel.ssd_window, write_state=False)[2], other.call(kernel.ssd_window)[2])


@pytest.mark.parametrize("write", [True, False])
def test_tokens_beyond_2_to_the_31_elements_are_read(write: bool) -> None:
    o = Options(b=1, t=3, io="bf16", g=1, h=1, p=5, n=6)
    near, case = cases.draw(o, padding=False), cases.draw(o, padding=False)
    near.call(kernel.ssd_window, write_state=write)
    case.call(kernel.ssd_window, write_state=write, **{name: far(getattr(case, name), 1) for name in cases.TOKENS})
    assert torch.equal(case.out, near.out)
    assert cases.untouched(case.S, near.S)


@pytest.mark.parametrize(
    "o", [Options(b=2, p=19, z=True, t=4), Options(b=1, t=9, io="bf16", state="bf16", n=16, g=1)], ids=str
)
@pytest.mark.parametrize("write", [True, False])
def test_bytes_equal_the_formula_and_the_state_is_read_once(o: Options, write: bool) -> None:
    check_bytes(kernel, o, write)
    check_bytes(kernel, o, write, block_p=16, program_p=32)


def test_a_tile_that_is_compiled_to_wrong_results_is_refused() -> None:
    case = cases.draw(Options(t=33, h=2, g=1, io="bf16"), padding=False)
    before = case.before()
    with pytest.raises(Unsupported, match="tiles of 16 channels with 4 warps are refused for 33 tokens"):
        case.call(kernel.ssd_window, block_p=16, num_warps=4, write_state=False)
    cases.unchanged(before)


def check_all(module: ModuleType) -> None:
    for o in (COVER[0], COVER[2], COVER[1], COVER[3]):
        check_bound(module, o)
    check_bound(module, Options(p=35, g=1, h=2), program_p=48, heads=2)
    check_bytes(module, Options(b=1, h=2), True)


FAULTS = [
    ("in_p = p_t < P\n", "in_p = p_t < P - 1\n", None),
    ("i < T, n < N, k < HEADS", "i < T, n < N + 1, k < HEADS", None),
    ("i < T, n < N, k < HEADS", "i < T - 1, n < N, k < HEADS", None),
    ("if slot >= 0:", "if slot > 0:", None),
    ("if slot >= 0:", "if slot != -2:", None),
    ("g = first // HEADS_PER_GROUP", "g = first % HEADS_PER_GROUP", None),
    ("before = i[:, None] >= i[None, :]", "before = i[:, None] > i[None, :]", None),
    ("sees = before & real[:, None] & real[None, :]", "sees = real[:, None] & real[None, :]", None),
    ("W + tl.sum(tl.where(k == head", "W * tl.sum(tl.where(k == head", None),
    ("to_state = tl.exp(total - G) * step", "to_state = tl.exp(total - G)", None),
    ("state = tl.exp(total) * state", "state = state", None),
    ("p_t = p + tile * BLOCK_P", "p_t = p + tile * 0", None),
    ("y_t *= silu(", "y_t *= (", None),
    ("before.to(tl.bfloat16), lds)", "before.to(tl.bfloat16), lds) - lds", None),
    ("                if WRITE_STATE:\n", "                if not WRITE_STATE:\n", None),
    ("mask=in_p[:, None] & in_n[None, :],", "mask=in_n[None, :],", None),
    ("(step[None, :] * scores)", "(step[:, None] * scores)", None),
    ("mask=in_rows[:, None] & in_cols[None, :], other=0.0", "mask=in_cols[None, :], other=0.0", "load_rows"),
    ("limit = self.dt_limit != ", "limit = self.dt_limit == ", "Inputs.constants"),
    ("tl.dot(lo, y, out_dtype=tl.float32)\n        acc = tl.dot(mid, y, acc=acc", "tl.dot(lo, y", "dot_left"),
    ("        acc = tl.dot(x, mid, acc=acc, out_dtype=tl.float32)\n", "", "dot_right"),
    ('tl.dot(x.to(tl.float32), y, input_precision="ieee")', 'tl.dot(x.to(tl.float32), y, input_precision="tf32")',
     "dot_right"),
]  # fmt: skip


CHAIN_FAULTS = [
    ("in_p, at_head = p < P, at_S", "in_p, at_head = p < P - 1, at_S", "ssd_window_chain_kernel"),
    ("if slot >= 0:", "if slot > 0:", "ssd_window_chain_kernel"),
    ("if slot >= 0:", "if slot != -2:", "ssd_window_chain_kernel"),
    ("real, real_t = e < T, t < T", "real, real_t = e < T - 1, t < T", "_real_tokens"),
    ("real, real_t = e < T, t < T", "real, real_t = e < T, t < T - 1", "_real_tokens"),
    ("real &= tl.load(at_live", "real |= tl.load(at_live", "_real_tokens"),
    ("(e[:, None] <= t[None, :])", "(e[:, None] < t[None, :])", "ssd_window_chain_kernel"),
    ("sees = (e[:, None] <= t[None, :]) & ", "sees = ", "ssd_window_chain_kernel"),
    ("h_0 = g * HEADS_PER_GROUP +", "h_0 = g +", "ssd_window_chain_kernel"),
    ("h, p_0 = g * HEADS_PER_GROUP +", "h, p_0 = g +", "ssd_window_chain_kernel"),
    ("index % TILES * BLOCK_P", "index % TILES * 0", "ssd_window_chain_kernel"),
    ("tl.minimum(first + run, HEADS_PER_GROUP * TILES)", "first + run", "ssd_window_chain_kernel"),
    ("tl.minimum(first + run, HEADS_PER_GROUP * TILES)", "tl.minimum(first + run, HEADS_PER_GROUP * TILES - 1)",
     "ssd_window_chain_kernel"),
    ("if (p_0 == 0) | (index == first):", "if index == first:", "ssd_window_chain_kernel"),
    ("if (p_0 == 0) | (index == first):", "if p_0 == 0:", "ssd_window_chain_kernel"),
    ("ahead, more = h + 1,", "ahead, more = h,", "ssd_window_chain_kernel"),
    ("(index // TILES + 1) * TILES < end", "(index // TILES + 2) * TILES < end", "ssd_window_chain_kernel"),
    ("diagonal, skip_h, D_HEAD)", "diagonal, 0.0, D_HEAD)", "_chain_weights"),
    ("tl.exp(total - G_e) * step", "tl.exp(total - G_e)", "_chain_weights"),
    ("weights_by_entry(G_e, G_t, step,", "weights_by_entry(G_e, G_t, step * step,", "_chain_weights"),
    ("y_t = dot_onto(y_t, state, C_right)", "y_t = dot_left(state, C_right)", "ssd_window_chain_kernel"),
    ("dot_onto(scale * state, weighted, B_left)", "dot_onto(state, weighted, B_left)", "ssd_window_chain_kernel"),
    ("dot_onto(scale * state, weighted, B_right)", "dot_onto(scale * state, weighted, B_left)", "ssd_window_chain_kernel"),
    ("y_t = from_state[None, :] * y_t", "y_t = y_t", "ssd_window_chain_kernel"),
    ("y_t *= silu(", "y_t *= (", "store_outputs"),
    ("y_t += skip[:, None]", "y_t += 0 * skip[:, None]", "store_outputs"),
    ("mask=in_p[:, None] & (t < T)[None, :])", "mask=in_p[:, None] & real[None, :])", "store_outputs"),
    ("_load(dt_bias + h, wanted)", "_load(dt_bias + h, wanted) * 0", "load_head"),
    ("self.D is not None and self.D.dim() == 1", "self.D is not None", "Inputs.skip_per_head"),
    ("return permuted(half.to(tl.float32), half.shape[0], HALF_N)", "return half.to(tl.float32)", "to_mma"),
    ("(n < N)[None, :] | WHOLE, other", "(n < N - 1)[None, :] | WHOLE, other", "load_half"),
    ("(n_0 + n < N) & wanted", "(n_0 + n < N + 1) & wanted", "store_half"),
    ("(p_0 + p < P)[:, None] & (n_0", "(p_0 + p < P - 1)[:, None] & (n_0", "store_half"),
    ("to_memory(state, state.shape[0], HALF_N)", "tl.reshape(state, (HALF_N // 16 * state.shape[0], 16))", "store_half"),
]  # fmt: skip


def check_chain(module: ModuleType) -> None:
    """Two groups of four heads of 35 channels, programs of one head and of two, D of both kinds."""
    o = Options(t=6, io="bf16", gentle=True, h=8, p=35, n=33, z=True, seed=1, poison=3.0)
    check_bound(module, o, heads=2)
    check_bound(module, replace(o, b=2, h=4, t=11, D="channel", live=True, seed=2, poison=float("nan")), program_p=16)
    check_bytes(module, replace(o, b=1, h=4), True, program_p=32, heads=2)


def test_chains_of_every_split_lie_within_the_bound_in_the_bytes_of_the_formula() -> None:
    check_chain(kernel)


def test_chains_of_many_rows_lie_within_the_bound_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "has_many_tiles", lambda *_: True)
    check_chain(kernel)


def test_planted_products_of_a_later_turn_are_caught_where_rows_are_many() -> None:
    mutant = mutated(kernel, "if MANY and index == first:", "if MANY and index == first + 1:", at="ssd_window_chain_kernel")
    check_chain(mutant)
    mutant.has_many_tiles = lambda *_: True  # type: ignore[attr-defined]
    with pytest.raises(AssertionError):
        check_chain(mutant)


@pytest.mark.parametrize(("old", "new", "at"), CHAIN_FAULTS, ids=[f"{at} {new}" for _, new, at in CHAIN_FAULTS])
def test_planted_fault_of_a_short_chain_is_caught(old: str, new: str, at: str) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_chain(mutant)


def test_planted_total_of_another_token_is_caught_in_a_short_chain() -> None:
    mutant = mutated(kernel, "tl.where(e == last, G_e, 0.0)", "tl.where(e == last - 1, G_e, 0.0)", at="_chain_weights")
    with pytest.raises(AssertionError):
        check_last_token(mutant, "bf16", 3)


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[new for _, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str | None) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_all(mutant)


def test_planted_exponents_without_a_limit_are_caught_by_strong_decays() -> None:
    old = "tl.minimum(G[:, None] - G[None, :], 88.0, propagate_nan=tl.PropagateNan.ALL)"
    mutant = mutated(kernel, old, "G[:, None] - G[None, :]")
    with pytest.raises(AssertionError):
        check_strong_decays(mutant)


def test_planted_operand_of_two_parts_is_caught_where_the_state_is_large() -> None:
    mutant = mutated(kernel, "lo, rest = cut(rest)", "lo, rest = cut(rest - rest)", at="split3")
    with pytest.raises(AssertionError):
        check_bound(mutant, Options(t=3, io="bf16", gentle=True))
