"""The selective scan's launchers: what every launcher is held to, and what is theirs alone."""

import pytest
import torch

from ssmspec_kernels.selective import selective_scan, selective_tree
from tests.kernels.laws import (  # noqa: F401
    pytest_generate_tests,
    test_a_window_is_its_tokens_one_by_one_bit_for_bit,
    test_a_window_of_no_ops_leaves_the_state_bit_for_bit_and_outputs_zero,
    test_an_axis_beyond_2_to_the_31_elements_is_reached,
    test_bytes_equal_the_formula_and_the_state_is_read_once,
    test_planted_fault_is_caught,
    test_results_lie_within_the_bound_and_nothing_else_is_written,
    test_rows_without_slots_have_their_own_number,
    test_without_the_final_state_the_output_is_the_same_and_rows_may_share_one,
)
from tests.kernels.selective_subjects import SUBJECTS, same_trees  # noqa: F401
from tests.kernels.tensors import watch


def test_one_token_has_a_second_warp_where_each_has_channels_of_its_own() -> None:
    sizes = (5120, 16), (64, 16), (32, 16), (3, 67), (5120, 67)
    assert [selective_scan._tile(d, n, 1)[1] for d, n in sizes] == [2, 2, 1, 1, 1]
    assert all(selective_scan._tile(d, n, 4)[1] == 1 for d, n in sizes)


def test_siblings_may_change_places() -> None:
    call, other = (same_trees(parents, seed=8) for parents in ([-1, 0, 0, 1, 2], [-1, 0, 0, 2, 1]))
    order = [0, 2, 1, 3, 4]  # the children 1 and 2 change places; so do their parents' names
    turned = {name: x[:, order] for name, x in call.cut(slice(None)).items() if name not in ("parents", "out")}
    y = call.run(selective_tree)
    assert torch.equal(other.run(selective_tree, **turned), y[:, order])


def test_what_lies_beside_a_path_does_not_reach_it() -> None:
    call = same_trees([-1, 0, 0, 2], seed=9)
    y = call.run(selective_tree).clone()
    call["x"][:, 1] = float("nan")
    again = call.run(selective_tree)
    assert torch.equal(again[:, [0, 2, 3]], y[:, [0, 2, 3]])
    assert again[:, 1].isnan().all()


@pytest.mark.parametrize("bad", [[-1, 2, 0, 7], [3, 3, 3, 3], [-1, 0, 127, 1]])
def test_parents_out_of_order_end_and_read_nothing_outside(bad: list[int]) -> None:
    call = same_trees(bad)
    with watch(**call.tensors) as seen:
        call.run(selective_tree)
    assert seen.outside == []


FAULTS = {
    "selective_scan": [
        ("if slot >= 0:", "if slot > 0:", "_selective_scan_kernel"),
        ("        if WRITE_STATE:\n", "        if not WRITE_STATE:\n", "_selective_scan_kernel"),
        ("step = tl.where(real, step, 0.0)", "step = step + 0.0", "_token"),
        ("tl.exp(step[:, None] * log_decay)", "tl.exp(-step[:, None] * log_decay)", "_token"),
        ("(step * x_t)[:, None]", "x_t[:, None]", "_token"),
        ("tl.where(real, y_t, 0.0)", "y_t + tl.where(real, 0.0, 1.0)", "_token"),
        ("y_t += skip * x_t", "y_t += skip", "_token"),
        ("y_t *= silu(", "y_t += silu(", "_token"),
        ("step = softplus(step)", "step = tl.maximum(step, 0.0)", "_token"),
        ("t * stride_B_t", "t * stride_C_t", "_token"),
        ("z + b * stride_z_b", "z + slot * stride_z_b", "_selective_scan_kernel"),
        ("d[:, None] * stride_A_d", "d[:, None] * stride_S_d", "_selective_scan_kernel"),
        ("(n < N)[None, :]", "(n <= N)[None, :]", "_selective_scan_kernel"),
        ("for t in range(tokens):", "for t in range(tokens - 1):", "_selective_scan_kernel"),
        ("B + t * stride_B_t, mask=states & real", "B + t * stride_B_t, mask=states", "_token"),
        ("return x / (1.0 + tl.exp(-x))", "return 1.0 / (1.0 + tl.exp(-x))", "silu"),
    ],
    "selective_tree": [
        ("if slot >= 0:", "if slot > 0:", "_selective_tree_kernel"),
        ("real = parent >= -1", "real = parent >= 0", "_selective_tree_kernel"),
        ("while tl.max(p, axis=0) >= 0:", "while tl.max(p, axis=0) > 0:", "_selective_tree_kernel"),
        ("a * tl.gather(U, rows, 0) + U", "tl.gather(U, rows, 0) + U", "_selective_tree_kernel"),
        ("a = tl.where(reached, a * tl.gather(a, rows, 0), a)", "a = tl.where(reached, a * a, a)", "_selective_tree_kernel"),
        ("p = tl.where(p >= 0, tl.gather(p, at, 0), p)", "p = tl.where(p >= 0, p - 1, p)", "_selective_tree_kernel"),
        ("p = tl.minimum(parent, i - 1)", "p = i - 1", "_selective_tree_kernel"),
        ("(a * state[None, :, :] + U)", "U", "_selective_tree_kernel"),
        ("step = softplus(step)", "step = tl.maximum(step, 0.0)", "_selective_tree_kernel"),
        ("slot * stride_S_s", "b * stride_S_s", "_selective_tree_kernel"),
        ("tl.where(real[:, None], y_t, 0.0)", "tl.where(real[:, None], y_t, 1.0)", "_selective_tree_kernel"),
        ("b * stride_parents_b", "slot * stride_parents_b", "_selective_tree_kernel"),
        ("states = real[:, None] & (n < N)[None, :]", "states = (n < N)[None, :] & (i < T)[:, None]",
         "_selective_tree_kernel"),
        ("t[:, None] * stride_C_t", "t[:, None] * stride_B_t", "_selective_tree_kernel"),
    ],
}  # fmt: skip
