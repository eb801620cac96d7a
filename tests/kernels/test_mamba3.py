"""Mamba-3's launchers: what every launcher is held to, and what is theirs alone."""

import torch

from ssmspec_kernels.mamba3 import (  # noqa: F401  # the kernels whose tests these are
    mamba3_commit,
    mamba3_packed,
    mamba3_scan,
    mamba3_snapshots,
    mamba3_tree,
)
from tests.kernels.laws import (  # noqa: F401
    pytest_generate_tests,
    test_a_window_is_its_tokens_one_by_one_bit_for_bit,
    test_a_window_of_no_ops_leaves_the_state_bit_for_bit_and_outputs_zero,
    test_bytes_equal_the_formula_and_the_state_is_read_once,
    test_planted_fault_is_caught,
    test_results_lie_within_the_bound_and_nothing_else_is_written,
    test_rows_without_slots_have_their_own_number,
    test_without_the_final_state_the_output_is_the_same_and_rows_may_share_one,
)
from tests.kernels.mamba3_subjects import SCAN, SUBJECTS, Options, drawn  # noqa: F401


def test_a_commit_has_the_bits_of_a_scan() -> None:
    o = Options(t=3, r=2, padding=False)
    call, scanned = SCAN.draw(o), SCAN.draw(o)
    scanned.run(mamba3_scan)
    names = ("S", "x", "dt", "A", "trap", "angle", "B", "B_norm", "B_bias", "dt_bias")
    one = {name: call[name][None] for name in names}
    how = {name: call[name] for name in ("slots", "A_floor", "eps", "halves")}
    mamba3_commit.mamba3_commit(**one, **how, advanced=torch.full((o.b,), o.t))
    assert torch.equal(one["S"][0][call.named], scanned["S"][call.named])


def test_a_chain_is_a_window() -> None:
    o = Options(t=4, r=2, b=2, padding=False)
    call, other = drawn("mamba3_tree", o, ancestors=torch.ones(o.t, o.t).tril().bool().repeat(o.b, 1, 1)), SCAN.draw(o)
    y = other.run(mamba3_scan, write_state=False)
    torch.testing.assert_close(call.run(mamba3_tree), y, rtol=1e-4, atol=1e-4)


FAULTS = {
    "mamba3_scan": [
        ("first, second = at + j, at + N // 2 + j", "first, second = at + 2 * j, at + 2 * j + 1", "load_pairs"),
        ("first, second = at + 2 * j, at + 2 * j + 1", "first, second = at + j, at + N // 2 + j", "load_pairs"),
        ("C_bias + r * N, cos, sin,", "C_bias + r * N, 1.0 + 0.0 * cos, 0.0 * sin,", "read"),
        ("kept_one, kept_two = tl.where(real, new_keys[r][0], keys[r][0])",
         "kept_one, kept_two = tl.where(real, new_keys[r][0], new_keys[r][0])", "advance"),
        ("one * cos - two * sin, one * sin + two * cos", "one * cos + two * sin, two * cos - one * sin", "vector"),
        ("/ N + eps", "+ eps", "vector"),
        ("B_bias + r * N", "B_bias", "advance"),
        ("B + r * stride_B_r", "B", "advance"),
        ("tl.where(real, x_t, value)", "x_t", "advance"),
        ("after = (after - turns * TURN_HEAD) - turns * TURN_REST", "after = after", "advance"),
        ("after = th + PI", "after = PI", "advance"),
        ("before * mapped(value, up, i, r, P)", "before * value", "advance"),
        ("a * dt_t * (1.0 - share)", "dt_t * (1.0 - share)", "weights"),
        ("tl.maximum(softplus(tl.load(A, mask=real, other=0.0).to(tl.float32)), floor)",
         "softplus(tl.load(A, mask=real, other=0.0).to(tl.float32))", "weights"),
        ("(n == 1) | (n == 2)", "(n == 1) | (n == 3)", "turned_by"),
        ("-1 / 5040", "1 / 5040", "turned_by"),
        ("at + P * N + F + r * N", "at + P * N + F", "store_pieces"),
        ("mask=j < F", "mask=j < F - 1", "store_pieces"),
        ("tl.load(D).to(tl.float32) * mapped(x_t, up, i, r, P)", "tl.load(D).to(tl.float32) * x_t", "finished"),
        ("return mapped(o, down, i, r, P)", "return o", "finished"),
        ("gate, i, r, P)", "None, i, r, P)", "finished"),
        ("tl.where(real, y, 0.0)", "y", "read"),
        ("if slot >= 0:", "if slot > 0:", "mamba3_scan_kernel"),
        ("        if WRITE_STATE:\n", "        if not WRITE_STATE:\n", "mamba3_scan_kernel"),
        ("h // HEADS * stride.B.g", "h * stride.B.g", "mamba3_scan_kernel"),
        ("C_bias + h * R * N", "C_bias", "mamba3_scan_kernel"),
    ],
    "mamba3_snapshots": [
        ("if place >= 0:", "if place > 99:", "mamba3_scan_kernel"),
        ("if place >= 0:", "if place != -2:", "mamba3_scan_kernel"),
        ("b * stride_places.b + t * stride_places.t", "b * stride_places.b", "mamba3_scan_kernel"),
    ],
    "mamba3_packed": [
        ("t = first + m", "t = tl.cast(m, tl.int64)", "mamba3_scan_kernel"),
        ("begins = tl.load(fresh + b) != 0", "begins = tl.load(fresh) != 0", "mamba3_scan_kernel"),
        ("(0, *strides(tensor, count - 1))", "(1, *strides(tensor, count - 1))", "window_strides"),
    ],
    "mamba3_commit": [
        ("(slot >= 0) & (taken > 0)", "(slot >= 0) & (taken > 1)", "_mamba3_commit_kernel"),
        ("slot_of(taken_rows, b)", "b", "_mamba3_commit_kernel"),
        ("t = tl.load(at_path + t * stride.path.k).to(tl.int64)", "t = tl.cast(k, tl.int64)", "_mamba3_commit_kernel"),
        ("B_norm + layer * N", "B_norm", "_mamba3_commit_kernel"),
        ("own = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_J), layer * heads + h",
         "own = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_J), h", "_mamba3_commit_kernel"),
        ("h // HEADS * stride.B.g", "0 * stride.B.g", "_mamba3_commit_kernel"),
    ],
    "mamba3_tree": [
        ("+ dot_both(before, of_child", "+ 0.0 * dot_both(before, of_child", "pair_weights"),
        ("n[None, :] < n[:, None]", "n[None, :] <= n[:, None]", "pair_weights"),
        ("tl.exp(ld) * dt_t * (1.0 - share)", "dt_t * (1.0 - share)", "pair_weights"),
        ("(parent < 0)[None, :], before", "(parent < 1)[None, :], before", "pair_weights"),
        ("th[None, :] + dot_both", "dot_both", "angles_of"),
        ("dot_both(sees.to(tl.float32), turned", "dot_both(sees.to(tl.float32), 0.5 * turned", "angles_of"),
        ("one * cos - two * sin, one * sin", "one * cos + two * sin, one * sin", "rotated_rows"),
        ("o = decayed[:, None] * (", "o = (", "mamba3_tree_kernel"),
        ("C_bias + (h * R + r) * N", "C_bias + h * R * N", "mamba3_tree_kernel"),
        ("mapped(x_t, at_up, i[None, :], s, P)", "mapped(x_t, at_up, i[None, :], r, P)", "mamba3_tree_kernel"),
        ("if slot >= 0:", "if slot > 0:", "mamba3_tree_kernel"),
        ("tl.where(real[:, None], y_t, 0.0)", "y_t", "mamba3_tree_kernel"),
    ],
}  # fmt: skip
