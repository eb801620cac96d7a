"""Activation replay of SSD beside the oracle: windows and trees in a row, the cache, and no race between them."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from ssmspec_kernels.shared import double_buffer as halves
from ssmspec_kernels.ssd.replay import ssd_replay_scan as kernel
from ssmspec_ref.errors import Unsupported
from tests.kernels import ssd_cases as cases
from tests.kernels.mutants import mutated
from tests.kernels.ssd_cases import Options
from tests.kernels.ssd_replay_checks import (
    CHAINS,
    TREES,
    cache_of,
    check_bytes,
    check_chains,
    check_exact,
    check_full,
    check_halves,
    check_last_token,
    check_long_history,
    check_path_with_gaps,
    check_short,
    check_trees,
    check_windows,
)
from tests.kernels.tensors import far


@pytest.mark.parametrize(("o", "window"), CHAINS, ids=str)
def test_windows_in_a_row_equal_plain_decoding_within_the_bound(o: Options, window: int) -> None:
    check_windows(kernel, o, window)


@pytest.mark.parametrize(("o", "window"), TREES, ids=str)
def test_trees_in_a_row_equal_plain_decoding_along_their_paths_within_the_bound(o: Options, window: int) -> None:
    check_windows(kernel, o, window, True, 4)


@pytest.mark.interpreter  # where memory that nobody touches takes none
@pytest.mark.parametrize(("io", "tree"), [("bf16", False), ("fp16", False), ("fp16", True)])
def test_tokens_and_entries_beyond_2_to_the_31_elements_are_read_and_cached(io: str, tree: bool) -> None:
    o = Options(b=1, t=3, io=io, g=1, h=1, p=5, n=6)
    (near, cache), (case, other) = ((cases.draw(o, padding=False), cache_of(replace(o, poison=0.5), 3)) for _ in range(2))
    other = replace(other, x=far(other.x, 1), B=far(other.B, 1))
    given: dict[str, Any] = {"ancestors": torch.ones(1, 3, 3, dtype=torch.bool).tril()} if tree else {}
    given |= {"advanced": torch.tensor([2])}
    near.call(kernel.ssd_replay_scan, cache=cache, **given)
    tokens = {name: far(getattr(case, name), 1) for name in cases.TOKENS}
    case.call(kernel.ssd_replay_scan, cache=other, **given, **tokens)
    assert torch.equal(case.out, near.out)
    for x, y in ((near.S, case.S), (cache.x, other.x), (cache.dt, other.dt), (cache.B, other.B)):
        assert cases.untouched(x, y)


@pytest.mark.parametrize("tiles", [(16, 16, 1), (16, 64, 3), (32, 32, 2)], ids=str)
def test_every_split_of_the_channels_lies_within_the_bound(tiles: tuple[int, int, int]) -> None:
    block, program, stages = tiles
    o = Options(b=2, t=3, p=50, h=2, io="bf16", z=True, D="channel")
    check_windows(kernel, o, 4, False, 3, block_p=block, program_p=program, stages=stages)


def test_integers_come_out_exactly() -> None:
    check_exact(kernel)


@pytest.mark.parametrize("advanced", [0, 2, 3])
@pytest.mark.parametrize(
    ("o", "tree"),
    [
        (Options(b=2, h=2, z=True), False),
        (Options(b=1, t=4, io="bf16", g=1, p=33), True),
        (Options(b=1, t=4, h=2), True),
    ],
    ids=str,
)
def test_a_window_moves_the_bytes_of_the_formula_and_no_program_reads_what_another_caches(
    o: Options, tree: bool, advanced: int
) -> None:
    check_bytes(kernel, o, advanced, tree)
    check_bytes(kernel, o, advanced, tree, block_p=16, program_p=16)


def test_a_long_window_takes_two_tiles_a_program() -> None:
    o = Options(b=1, t=33, h=1, g=1, p=32, n=4, io="bf16")
    case, cache = cases.draw(o), cache_of(o, 33)
    given = {"cache": cache, "advanced": torch.zeros(1).int()}
    before = cache.x.clone()
    with pytest.raises(Unsupported, match="one tile of 16 channels a program is refused for 33 tokens"):
        case.call(kernel.ssd_replay_scan, **given, block_p=16, program_p=16)
    assert torch.equal(cache.x.view(torch.int16), before.view(torch.int16))
    case.call(kernel.ssd_replay_scan, **given, block_p=16, program_p=32)
    slot = int(case.slots[0])
    first = 33 * (1 - int(cache.half[slot]))
    assert torch.equal(cache.x[slot, first : first + 33], case.x[0])
    y = case.out.clone()
    assert torch.equal(case.call(kernel.ssd_replay_scan, **given), y)


@pytest.mark.parametrize("io", ["fp32", "bf16"])
@pytest.mark.parametrize("tree", [False, True])
def test_a_path_with_gaps_replays_the_nodes_it_names(tree: bool, io: str) -> None:
    check_path_with_gaps(kernel, tree, io)


@pytest.mark.parametrize("io", ["fp32", "bf16"])
def test_one_token_replays_as_much_as_a_whole_window(io: str) -> None:
    """The states behind both, and the output of the first token, are the same bits."""
    o = Options(b=2, t=3, h=2, p=5, n=6, io=io, seed=2)
    found = []
    for length in (1, 3):
        case, cache = cases.draw(o, padding=False), cache_of(replace(o, poison=0.5), 4)
        given = {"advanced": torch.tensor([2, 3]), "lengths": torch.full((2,), length)}
        before = case.S.clone()
        case.call(kernel.ssd_replay_scan, cache=cache, **given)
        found.append((case.S[case.slots.long()], case.out[:, :1]))
        assert not torch.equal(found[-1][0], before[case.slots.long()])
    assert all(torch.equal(one, whole) for one, whole in zip(*found, strict=True))


@pytest.mark.parametrize("tree", [False, True])
def test_the_last_accepted_tokens_weight_is_its_dt(tree: bool) -> None:
    check_last_token(kernel, tree)


@pytest.mark.parametrize("total", ["tl.sum((step_k * decay).to(tl.float32), axis=0)", "tl.sum(tl.where(k == 5, G_k, 0.0))"])
def test_planted_total_of_another_sum_is_caught_at_the_last_token(total: str) -> None:
    right = "tl.sum(tl.where(k == tl.max(tl.where(taken, k, -1), axis=0), G_k, 0.0), axis=0)"
    mutant = mutated(kernel, right, total)
    with pytest.raises(AssertionError):
        check_last_token(mutant, True)


def test_the_halves_turn_over_for_the_rows_that_took_part() -> None:
    check_halves(halves)


OF_TREES = "_ssd_replay_scan_kernel", "_replayed", "_nodes_or_tokens", "accepted_nodes"

FAULTS = [
    ("tl.where(length > 0, tl.minimum(tl.load(advanced + b).to(tl.int32), REPLAYED), 0)",
     "tl.minimum(tl.load(advanced + b).to(tl.int32), REPLAYED)", "ssd_replay_chain_kernel"),
    ("taken = k < count", "taken = k < count - 1", "accepted_nodes"),
    ("taken = j < count", "taken = j < count - 1", "_cached"),
    ("for j in range(count):", "for j in range(count - 1):", "_replay_tokens"),
    ("tl.minimum(j + 1, count - 1)", "j", "_replay_tokens"),
    ("tl.minimum(t + 1, T - 1)", "t", "_walk_window"),
    ("if count > 0:", "if count >= 0:", "ssd_replay_chain_kernel"),
    ("if count > 0:", "if count > 1:", "ssd_replay_chain_kernel"),
    ("old_x = cache.x + slot * stride_cache.x.s + last", "old_x = cache.x + slot * stride_cache.x.s + (1 - last)",
     "ssd_replay_chain_kernel"),
    ("old_B = cache.B + slot * stride_cache.B.s + last", "old_B = cache.B + slot * stride_cache.B.s + (1 - last)",
     "ssd_replay_chain_kernel"),
    ("new = (1 - last) * ENTRIES + t_i", "new = last * ENTRIES + t_i", "ssd_replay_chain_kernel"),
    ("new_x = cache.x + slot * stride_cache.x.s + (1 - last)", "new_x = cache.x + slot * stride_cache.x.s + last",
     "ssd_replay_chain_kernel"),
    ("step_size(raw_k, taken, bias,", "step_size(raw_k, taken, 0.0,", "ssd_replay_chain_kernel"),
    ("tl.fma(state, element(decays, k, j),", "tl.fma(state, 1.0,", "_replay_tokens"),
    ("if h % HEADS_PER_GROUP == 0:", "if h >= 0:", "_cache_steps"),
    ("if tl.program_id(0) == 0:", "if tl.program_id(0) >= 0:", "_cache_steps"),
    ("raw, mask=real)", "(raw + 1).to(raw.dtype), mask=real)", "_cache_steps"),
    ("x_t, mask=in_p & (t < length))", "x_t, mask=in_p)", "_walk_window"),
    ("real = t < length", "real = t <= length", "_token"),
    ("((p < P) |", "((p < P - 1) |", "state_rows"),
    ("(1 - last) * ENTRIES + t", "last * ENTRIES + t", "_ssd_replay_scan_kernel"),
    ("at_old, at_new = last * ENTRIES + node", "at_old, at_new = (1 - last) * ENTRIES + node", "_ssd_replay_scan_kernel"),
    ("count = tl.where(length > 0, tl.minimum(tl.load(advanced + b).to(tl.int32), REPLAYED), 0)",
     "count = tl.minimum(tl.load(advanced + b).to(tl.int32), REPLAYED)", "_ssd_replay_scan_kernel"),
    ("path + b * stride_path.b + node", "path + node", "accepted_nodes"),
    ("in_n[None, :] & (count > 0)", "in_n[None, :]", "_ssd_replay_scan_kernel"),
    ("step_k = step_size(raw_k, taken, bias,", "step_k = step_size(raw_k, taken, 0.0,", "_replayed"),
    ("to_state = tl.exp(replay - G_k) * step_k", "to_state = tl.exp(replay - G_k)", "_replayed"),
    ("state = tl.exp(replay) * state", "state = state", "_ssd_replay_scan_kernel"),
    ("(owns & (h % HEADS_PER_GROUP == 0))", "owns", "_ssd_replay_scan_kernel"),
    ("owns = real & (tl.program_id(0) == 0)", "owns = real & (tl.program_id(0) >= 0)", "_ssd_replay_scan_kernel"),
    ("raw, mask=owns)", "step.to(raw.dtype), mask=owns)", "_ssd_replay_scan_kernel"),
    ("real &= tl.max(", "sees &= tl.max(", "_nodes_or_tokens"),
    ("tl.sum(tl.where(sees, ld[None, :], 0.0), axis=1)", "tl.sum(tl.where(sees, ld[:, None], 0.0), axis=0)",
     "_ssd_replay_scan_kernel"),
    ("dot_left(tl.trans(to_state[:, None] * x_k.to(tl.float32)), B_k)",
     "tl.dot(tl.trans((to_state[:, None] * x_k.to(tl.float32)).to(B_k.dtype)), B_k)", "_ssd_replay_scan_kernel"),
]  # fmt: skip


@pytest.mark.parametrize("wrong", ["(node >= 0) | (node < ENTRIES)", "node >= 0", "node < ENTRIES"])
@pytest.mark.parametrize("tree", [False, True])
def test_a_planted_node_outside_the_window_is_caught(tree: bool, wrong: str) -> None:
    mutant = mutated(kernel, "taken &= (node >= 0) & (node < ENTRIES)", f"taken &= {wrong}", at="accepted_nodes")
    with pytest.raises(AssertionError):
        check_path_with_gaps(mutant, tree=tree)


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[f"{at} {new}" for _, new, at in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        (check_trees if at in OF_TREES else check_chains)(mutant)


def test_a_planted_count_of_accepted_tokens_is_caught_in_chains_too() -> None:
    mutant = mutated(kernel, "taken = k < count", "taken = k < count - 1", at="accepted_nodes")
    with pytest.raises(AssertionError):
        check_chains(mutant)


SHORT = "ssd_replay_short_kernel"
SHORT_FAULTS = [
    ("tl.where(length > 0, tl.minimum(tl.load(advanced + b).to(tl.int32), REPLAYED), 0)",
     "tl.minimum(tl.load(advanced + b).to(tl.int32), REPLAYED)", "_accepted_entries"),
    ("taken = k < count", "taken = k < count - 1", "accepted_nodes"),
    ("path + b * stride_path.b + node", "path + node", "accepted_nodes"),
    ("at_old, at_new = last * ENTRIES + node, (1 - last)",
     "at_old, at_new = (1 - last) * ENTRIES + node, (1 - last)", "_accepted_entries"),
    ("node, (1 - last) * ENTRIES + row_i", "node, last * ENTRIES + row_i", "_accepted_entries"),
    ("tl.where(i == final, G_k, 0.0)", "tl.where(i == 0, G_k, 0.0)", "_head_sums"),
    ("real, real_t = i < length, t < length", "real, real_t = i <= length, t < length", "_real_pairs"),
    ("row_i[:, None] * stride.j + col_t[None, :]", "row_i[:, None] * stride.t + col_t[None, :]", "_real_pairs"),
    ("(i[:, None] <= t[None, :])", "(i[:, None] < t[None, :])", "_real_pairs"),
    ("if first == 0:", "if first >= 0:", "_group_operands"),
    ("if p_0 == 0:", "if index == first:", SHORT),
    ("h_0 = g * HEADS_PER_GROUP +", "h_0 = g +", SHORT),
    ("tl.minimum(first + run, HEADS_PER_GROUP * TILES)", "tl.minimum(first + run, HEADS_PER_GROUP * TILES - 1)", SHORT),
    ("if (p_0 == 0) | (index == first):", "if p_0 == 0:", SHORT),
    ("if (p_0 == 0) | (index == first):", "if index == first:", SHORT),
    ("(index // TILES + 1) * TILES < end", "(index // TILES + 2) * TILES < end", SHORT),
    ("ahead, more = h + 1,", "ahead, more = h,", SHORT),
    ("past = step_size(raw_past, taken, bias,", "past = step_size(raw_past, taken, 0.0,", SHORT),
    ("tl.exp(total - G_k) * past", "tl.exp(total - G_k)", "_head_sums"),
    ("weights_by_entry(G_i, G_t, step,", "weights_by_entry(G_i, G_t, step * step,", "_head_sums"),
    ("state = dot_onto(scale * to_mma(left", "state = dot_onto(to_mma(left", SHORT),
    ("to_mma(right, HALF_N), weighted, B_right)", "to_mma(right, HALF_N), weighted, B_left)", SHORT),
    ("p_0, 0, stride.S.p, count > 0,", "p_0, 0, stride.S.p, count > 1,", SHORT),
    ("p_0, HALF_N, stride.S.p, count > 0,", "p_0, HALF_N, stride.S.p, count >= 0,", SHORT),
    ("y_t = growth[None, :] * y_t", "y_t = y_t", SHORT),
    ("_cache_x(old_x, x_i, h, at_new, p, real,", "_cache_x(old_x, x_i, h, at_new, p, i < T,", SHORT),
    ("raw, mask=real)  # (3)", "step.to(raw.dtype), mask=real)  # (3)", SHORT),
]  # fmt: skip


def test_short_windows_with_runs_that_end_within_a_head_lie_within_the_bound() -> None:
    check_short(kernel)


def test_sixteen_tokens_that_are_all_accepted_are_replayed() -> None:
    check_full(kernel)


@pytest.mark.parametrize("io", ["bf16", "fp32"])
def test_a_short_window_behind_a_long_one_replays_all_of_it(io: str) -> None:
    check_long_history(kernel, io)


def test_a_planted_choice_by_the_shorter_of_window_and_history_is_caught() -> None:
    """In bf16: with fp32 the kernel of short windows takes a history of any length."""
    mutant = mutated(kernel, "n <= 128 and max(t, replayed) <= WALKED", "n <= 128 and min(t, replayed) <= WALKED")
    with pytest.raises(AssertionError):
        check_long_history(mutant, "bf16")


def test_planted_last_token_of_sixteen_is_caught() -> None:
    mutant = mutated(
        kernel, "tl.max(tl.where(taken, i, -1), axis=0)", "tl.max(tl.where(taken, -1, i), axis=0)", at="_accepted_entries"
    )
    with pytest.raises(AssertionError):
        check_full(mutant)


def test_the_last_accepted_tokens_weight_is_its_dt_in_short_windows() -> None:
    check_last_token(kernel, True, "bf16")


@pytest.mark.parametrize(("old", "new", "at"), SHORT_FAULTS, ids=[new for _, new, _ in SHORT_FAULTS])
def test_planted_fault_of_short_windows_is_caught(old: str, new: str, at: str) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_short(mutant)


@pytest.mark.parametrize("wrong", ["(node >= 0) | (node < ENTRIES)", "node >= 0", "node < ENTRIES"])
def test_a_planted_node_outside_a_short_window_is_caught(wrong: str) -> None:
    mutant = mutated(kernel, "taken &= (node >= 0) & (node < ENTRIES)", f"taken &= {wrong}", at="accepted_nodes")
    with pytest.raises(AssertionError):
        check_path_with_gaps(mutant, True, "bf16")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1 - tl.load(half + slot", "0 * tl.load(half + slot"),
        ("took &= slot >= 0", "slot = tl.maximum(slot, 0)"),
        ("took &= tl.load(lengths + b, mask=took, other=0) > 0", "pass"),
        ("b = tl.program_id(0) * BLOCK + ", "b = "),
    ],
)
def test_planted_fault_of_the_halves_is_caught(old: str, new: str) -> None:
    with pytest.raises(AssertionError):
        check_halves(mutated(halves, old, new))
