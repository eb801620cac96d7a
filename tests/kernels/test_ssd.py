"""SSD's launchers for windows, trees and commits: what every launcher is held to, and what is theirs alone."""

from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_kernels.linear import linear_rows
from ssmspec_kernels.ssd import (  # noqa: F401  # the kernels whose tests these are
    ssd_commit,
    ssd_gated,
    ssd_gated_window,
    ssd_scan,
    ssd_snapshots,
    ssd_tree_scan,
    ssd_window,
)
from ssmspec_ref import error_bounds as eb
from ssmspec_ref import tree
from ssmspec_ref.error_bounds.arithmetic import constant, sum_of_products
from tests.kernels import ssd_plot as ssd
from tests.kernels.laws import (  # noqa: F401
    bits,
    check_bound,
    pytest_generate_tests,
    same,
    test_a_window_is_its_tokens_one_by_one_bit_for_bit,
    test_a_window_of_no_ops_leaves_the_state_bit_for_bit_and_outputs_zero,
    test_an_axis_beyond_2_to_the_31_elements_is_reached,
    test_bytes_equal_the_formula_and_the_state_is_read_once,
    test_planted_fault_is_caught,
    test_results_lie_within_the_bound_and_nothing_else_is_written,
    test_rows_without_slots_have_their_own_number,
    test_what_a_launcher_alone_is_held_to,
    test_without_the_final_state_the_output_is_the_same_and_rows_may_share_one,
)
from tests.kernels.mutants import mutated
from tests.kernels.ssd_faults import FAULTS  # noqa: F401
from tests.kernels.ssd_plot import Options
from tests.kernels.ssd_subjects import GATED, SCAN, SNAPSHOTS, SUBJECTS, TREE  # noqa: F401
from tests.kernels.tensors import check_within, doubles

# --- the scan ---


def test_one_token_has_a_narrow_tile_where_its_lanes_hold_as_much_as_in_the_wide_one() -> None:
    assert ssd_scan.tile(64, 1, 128, 4) == ssd_scan.tile(64, 1, 64, 2) == (4, 1)
    for n, size in (16, 4), (21, 2), (32, 2):
        assert ssd_scan.tile(64, 1, n, size) == ssd_scan.tile(64, 4, n, size) == (16, 1)


def test_a_step_that_is_nan_shows_although_it_is_limited() -> None:
    call = SCAN.draw(Options(t=2, limit=(0.01, 0.5), padding=False))
    call["dt"][1, 1, 2] = float("nan")
    assert torch.isnan(call.run(ssd_scan)[1, 1, 2]).all()


def test_planted_rounding_of_the_state_between_tokens_is_caught_by_its_bound() -> None:
    """Eleven bits of the state, as a tf32 product would keep: less than a bf16 output shows."""
    after = "        y_t = tl.sum(tl.sum(state"
    mutant = mutated(ssd_scan, after, "        state = state.to(tl.float16).to(tl.float32)\n" + after)
    with pytest.raises(AssertionError):
        check_bound(SCAN, mutant, Options(t=2, gentle=True, io="bf16"))


# --- a state after every token ---


@pytest.mark.parametrize("o", [SNAPSHOTS.cover[0], SNAPSHOTS.cover[2]], ids=str)
def test_every_state_is_that_of_a_shorter_scan_bit_for_bit(o: Options) -> None:
    call = SNAPSHOTS.draw(o)
    call.run(ssd_snapshots)
    for t in range(o.t):
        shorter = SCAN.draw(o)
        shorter.run(ssd_scan, fused=False, **shorter.cut(slice(t + 1)))
        for row in call.rows:
            if (place := int(call["places"][row, t])) >= 0:
                assert torch.equal(call["S"][place], shorter["S"][int(call["slots"][row])])


def test_states_may_be_kept_in_a_buffer_of_their_own_and_of_another_type() -> None:
    o = Options(t=3, g=1, h=2, spare=12, padding=False)
    call, other = SNAPSHOTS.draw(o), SNAPSHOTS.draw(o)
    before = bits(call, "S")
    kept = torch.full((o.b, o.t, o.h, o.p, o.n), float("nan"), dtype=torch.bfloat16)
    call.run(ssd_snapshots, places=torch.arange(o.b * o.t).reshape(o.b, o.t), pool=kept.flatten(0, 1))
    other.run(ssd_snapshots)
    assert torch.equal(kept, other["S"][other["places"].long()].bfloat16())
    assert same(before, bits(call, "S"))


# --- trees ---


def test_a_tree_with_one_path_is_a_window_bit_for_bit() -> None:
    o = Options(t=6, io="bf16", z=True, chain=True)
    call, other = TREE.draw(o), ssd.drawn("ssd_window", o)
    call.run(ssd_tree_scan)
    other.run(ssd_window, write_state=False)
    assert same(bits(call, "out"), bits(other, "out"))
    check_within(doubles(call["out"])[call.rows], ssd.of_tree(call))


def test_a_node_does_not_see_its_siblings() -> None:
    """Whatever finite values stand in a branch, the other branches have the same bits."""
    o = Options(b=1, t=7, h=2, padding=False, chain=True)
    call, other = TREE.draw(o), TREE.draw(o)
    mask = torch.from_numpy(tree.ancestors(np.array([[-1, 0, 0, 1, 2, 2, 3]])))
    for name in ("x", "dt", "B", "C"):
        other[name][:, [2, 4, 5]] = 3.0
    rest = [0, 1, 3, 6]
    assert torch.equal(*(one.run(ssd_tree_scan, ancestors=mask)[:, rest] for one in (call, other)))


# --- the first half of a norm ---


def test_a_row_has_the_same_bits_alone_and_in_any_batch() -> None:
    o = Options(b=4, t=1, io="bf16", z=True, D="channel", padding=False, seed=5)
    together, alone = GATED.draw(o), GATED.draw(o)
    together.run(ssd_gated)
    for b in range(o.b):
        alone.run(ssd_gated, **alone.cut(slice(b, b + 1), "b"))
    assert same(bits(together), bits(alone))


@pytest.mark.interpreter
def test_products_are_rounded_before_they_are_summed_as_where_a_row_keeps_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter fuses nothing: what the compiler may fuse is seen in what it is asked for."""
    asked: list[dict[str, Any]] = []

    class Recorded:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *given, **options: asked.append(options)

    monkeypatch.setattr(ssd_gated, "ssd_scan_kernel", Recorded())
    GATED.draw(Options(t=1, io="bf16", z=True)).run(ssd_gated)
    assert [options["enable_fp_fusion"] for options in asked] == [False]


def test_a_norm_and_a_projection_behind_it_are_those_of_the_oracle() -> None:
    """rms(y silu(z)) W^T, each step of it as its contract rounds it."""
    o = Options(t=1, io="bf16", z=True, h=3, g=1, p=32, n=16, padding=False, seed=6)
    call, c = GATED.draw(o), o.h * o.p
    g = ssd.scanned(call, io="fp32")[0].map(lambda a: a.reshape(o.b, -1))
    W = torch.from_numpy(np.random.default_rng(8).normal(size=(21, c)) * c**-0.5).bfloat16()
    v, squares = call.run(ssd_gated)
    y = linear_rows.linear_rows(v.reshape(o.b, c), W, squares=squares[:, 0].contiguous(), eps=1e-5, block_k=64)
    weighted = (g * constant(doubles(call["weight"]).ravel(), g.contract)).store("bf16")
    mean = sum_of_products(("...i, ...i -> ...", g, g)) * constant(1 / c, g.contract)
    product = sum_of_products(("...i, oi -> ...o", weighted, constant(doubles(W), g.contract)), matmuls=1)
    check_within(doubles(y), (product * eb.rsqrt(mean + 1e-5)[..., None]).store("bf16"))
