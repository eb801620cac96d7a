"""Activation replay of SSD beside the oracle: windows and trees in a row, the cache, and no race between them."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from ssmspec_kernels.shared import double_buffer as halves
from ssmspec_kernels.ssd.replay import ssd_replay_scan as kernel
from ssmspec_ref.errors import Unsupported
from tests.kernels.laws import (  # noqa: F401
    bits,
    pytest_generate_tests,
    same,
    test_bytes_equal_the_formula_and_the_state_is_read_once,
    test_planted_fault_is_caught,
    test_what_a_launcher_alone_is_held_to,
)
from tests.kernels.mutants import mutated
from tests.kernels.ssd_plot import Options
from tests.kernels.ssd_replay_checks import (
    CHAINS,
    SUBJECTS,  # noqa: F401
    TREES,
    check_exact,
    check_full,
    check_halves,
    check_last_token,
    check_long_history,
    check_path_with_gaps,
    check_windows,
    drawn,
)
from tests.kernels.ssd_ring_faults import REPLAYED as FAULTS  # noqa: F401
from tests.kernels.tensors import Kept, far


@pytest.mark.parametrize(("o", "window"), CHAINS, ids=str)
def test_windows_in_a_row_equal_plain_decoding_within_the_bound(o: Options, window: int) -> None:
    check_windows(kernel, o, window)


@pytest.mark.parametrize(("o", "window"), TREES, ids=str)
def test_trees_in_a_row_equal_plain_decoding_along_their_paths_within_the_bound(o: Options, window: int) -> None:
    check_windows(kernel, o, window, True, 4)


@pytest.mark.interpreter  # where memory that nobody touches takes none
@pytest.mark.parametrize(("io", "tree"), [("bf16", False), ("fp16", False), ("fp16", True)])
def test_tokens_and_entries_beyond_2_to_the_31_elements_are_read_and_cached(io: str, tree: bool) -> None:
    near, call = (drawn(Options(b=1, t=3, io=io, g=1, h=1, p=5, n=6, padding=False, poison=0.5)) for _ in range(2))
    call["cache"] = replace(call["cache"], x=far(call["cache"].x, 1), B=far(call["cache"].B, 1))
    given: dict[str, Any] = {"ancestors": torch.ones(1, 3, 3, dtype=torch.bool).tril()} if tree else {}
    given |= {"advanced": torch.tensor([2])}
    near.run(kernel, **given)
    call.run(kernel, **given, **{name: far(call[name], 1) for name in ("x", "dt", "B", "C")})
    assert same(bits(near, "S", "out"), bits(call, "S", "out"))
    assert all(torch.equal(x, y) for x, y in zip(near["cache"].tensors, call["cache"].tensors, strict=True))


@pytest.mark.parametrize("tiles", [(16, 16, 1), (16, 64, 3), (32, 32, 2)], ids=str)
def test_every_split_of_the_channels_lies_within_the_bound(tiles: tuple[int, int, int]) -> None:
    block, program, stages = tiles
    o = Options(b=2, t=3, p=50, h=2, io="bf16", z=True, D="channel")
    check_windows(kernel, o, 4, False, 3, block_p=block, program_p=program, stages=stages)


def test_integers_come_out_exactly() -> None:
    check_exact(kernel)


def test_a_long_window_takes_two_tiles_a_program() -> None:
    call = drawn(Options(b=1, t=33, h=1, g=1, p=32, n=4, io="bf16"))
    cache, kept = call["cache"], Kept(**call.tensors)
    with pytest.raises(Unsupported, match="one tile of 16 channels a program is refused for 33 tokens"):
        call.run(kernel, block_p=16, program_p=16)
    kept.check()
    call.run(kernel, block_p=16, program_p=32)
    slot = int(call["slots"][0])
    first = 33 * (1 - int(cache.half[slot]))
    assert torch.equal(cache.x[slot, first : first + 33], call["x"][0])
    y = call["out"].clone()
    assert torch.equal(call.run(kernel), y)


@pytest.mark.parametrize("io", ["fp32", "bf16"])
@pytest.mark.parametrize("tree", [False, True])
def test_a_path_with_gaps_replays_the_nodes_it_names(tree: bool, io: str) -> None:
    check_path_with_gaps(kernel, tree, io)


@pytest.mark.parametrize("io", ["fp32", "bf16"])
def test_one_token_replays_as_much_as_a_whole_window(io: str) -> None:
    """The states behind both, and the output of the first token, are the same bits."""
    found = []
    for length in (1, 3):
        call = drawn(Options(b=2, t=3, h=2, p=5, n=6, io=io, padding=False, poison=0.5, seed=2), 4)
        before = call["S"].clone()
        call.run(kernel, advanced=torch.tensor([2, 3]), lengths=torch.full((2,), length))
        found.append((call["S"][call.named], call["out"][:, :1]))
        assert not torch.equal(found[-1][0], before[call.named])
    assert all(torch.equal(one, whole) for one, whole in zip(*found, strict=True))


@pytest.mark.parametrize("tree", [False, True])
def test_the_last_accepted_tokens_weight_is_its_dt(tree: bool) -> None:
    check_last_token(kernel, tree)


def test_the_halves_turn_over_for_the_rows_that_took_part() -> None:
    check_halves(halves)


def test_sixteen_tokens_that_are_all_accepted_are_replayed() -> None:
    check_full(kernel)


@pytest.mark.parametrize("io", ["bf16", "fp32"])
def test_a_short_window_behind_a_long_one_replays_all_of_it(io: str) -> None:
    check_long_history(kernel, io)


def test_the_last_accepted_tokens_weight_is_its_dt_in_short_windows() -> None:
    check_last_token(kernel, True, "bf16")


OUTSIDE = "taken &= (node >= 0) & (node < ENTRIES)"
WEIGHT = "tl.sum(tl.where(k == tl.max(tl.where(taken, k, -1), axis=0), G_k, 0.0), axis=0)"
ONE_LAW: list[tuple[Any, ...]] = [
    *(
        (lambda module, form=form: check_path_with_gaps(module, *form), kernel, OUTSIDE, f"taken &= {wrong}",
         "accepted_nodes")
        for form in ((True, "fp32"), (False, "fp32"), (True, "bf16"))
        for wrong in ("(node >= 0) | (node < ENTRIES)", "node >= 0", "node < ENTRIES")
    ),
    (lambda m: check_last_token(m, True), kernel, WEIGHT, "tl.sum((step_k * decay).to(tl.float32), axis=0)"),
    (lambda m: check_last_token(m, True), kernel, WEIGHT, "tl.sum(tl.where(k == 5, G_k, 0.0))"),
    (lambda m: check_long_history(m, "bf16"), kernel, "n <= 128 and max(t, replayed) <= WALKED",
     "n <= 128 and min(t, replayed) <= WALKED"),  # with fp32 the kernel of short windows takes a history of any length
    (check_full, kernel, "tl.max(tl.where(taken, i, -1), axis=0)", "tl.max(tl.where(taken, -1, i), axis=0)",
     "_accepted_entries"),
    (check_halves, halves, "1 - tl.load(half + slot", "0 * tl.load(half + slot"),
    (check_halves, halves, "took &= slot >= 0", "slot = tl.maximum(slot, 0)"),
    (check_halves, halves, "took &= tl.load(lengths + b, mask=took, other=0) > 0", "pass"),
    (check_halves, halves, "b = tl.program_id(0) * BLOCK + ", "b = "),
]  # fmt: skip


@pytest.mark.parametrize("fault", ONE_LAW, ids=[fault[3] for fault in ONE_LAW])
def test_planted_fault_of_one_law_is_caught(fault: Any) -> None:
    check, module, old, new, *at = fault
    mutant = mutated(module, old, new, at=at[0] if at else None)
    with pytest.raises(AssertionError):
        check(mutant)
