"""The launchers of both convolutions: what every launcher is held to, and what is theirs alone."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_kernels.conv import conv_commit, conv_packed, conv_step, conv_tree, conv_window  # noqa: F401
from ssmspec_kernels.shortconv import (  # noqa: F401  # the kernels whose tests these are
    shortconv_commit,
    shortconv_packed,
    shortconv_scan,
    shortconv_snapshots,
    shortconv_tree,
)
from ssmspec_ref import conv as oracle
from ssmspec_ref import error_bounds as eb
from tests.kernels import conv_plot as conv
from tests.kernels.conv_faults import FAULTS  # noqa: F401
from tests.kernels.conv_plot import Commits, Options, committed, drawn, short
from tests.kernels.conv_subjects import SUBJECTS  # noqa: F401
from tests.kernels.laws import (  # noqa: F401
    pytest_generate_tests,
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
from tests.kernels.tensors import check_within, doubles


@pytest.mark.parametrize("module", [conv_step, conv_commit])
def test_a_state_narrower_than_its_inputs_is_rounded_once(module: ModuleType) -> None:
    M, u = torch.zeros(1, 5, 4, dtype=torch.bfloat16), torch.randn(1, 6, 5)
    if module is conv_commit:
        conv_commit.conv_commit(M, u, advanced=torch.tensor([6]))
    else:
        for t in range(6):
            conv_step.conv_step(M, u[:, t], torch.ones(5, 4))
    assert torch.equal(M[0], u[0, 2:].T.to(torch.bfloat16))


# --- what was accepted of the window before ---


def test_replay_in_the_launch_equals_never_having_speculated() -> None:
    """Verify, accept, verify again: the second window reads what plain decoding reads, for every count accepted."""
    for accepted in range(6):
        call = drawn("conv_window", Options(b=1, padding=False, seed=12, keep="none"))
        call["M"][..., 0], contract = 0.0, call.options.contract()
        call.run(conv_window)
        plain = oracle.commit(call.state(), conv.window(call), np.array([accepted]))
        y = call.run(conv_window, previous=call["u"], advanced=torch.tensor([accepted]), keep="committed")
        assert np.array_equal(call.state(), plain)
        check_within(doubles(y), eb.conv.scan(plain, conv.window(call), conv.params(call), contract)[0])


@pytest.mark.parametrize(("advanced", "meant"), [(-3, 0), (99, 7), (8, 7)])
def test_a_count_outside_the_window_is_taken_as_its_end(advanced: int, meant: int) -> None:
    results = []
    for given in (advanced, meant):
        call = drawn("conv_window", Options(replay="advanced", keep="committed", padding=False, seed=13))
        call["previous"][:] = 1.0
        call["advanced"][:] = given
        results.append((call.run(conv_window), call["M"][call.named]))
    assert not results[0][0].isnan().any()
    assert all(map(torch.equal, *results))


NODES = [(conv_window, node) for node in (7, 8, 99)] + [(shortconv_commit, node) for node in (5, 6, 99)]


@pytest.mark.parametrize(("module", "node"), NODES)
def test_a_node_outside_the_window_is_read_as_zeros(module: ModuleType, node: int) -> None:
    """The gaps behind the inputs hold NaN."""
    if module is conv_window:
        call = drawn("conv_window", Options(replay="path", keep="committed", padding=False, seed=14))
        call["previous"][:] = 1.0
    else:
        call = committed("shortconv_commit")(Commits(path=True, b=3, seed=1))
    call["path"][:] = -1
    call["path"][:, 0] = node
    call.run(module)
    found = call[call.pool].movedim(-3, 0)[call.named]
    assert not found.isnan().any()
    assert not found[..., -1].any()
    assert not call.given.get("out", torch.zeros(1)).isnan().any()


# --- trees, packed runs ---


@pytest.mark.parametrize(("window", "chain"), [(conv_window, True), (conv_window, False), (shortconv_scan, True)])
def test_a_chain_is_the_tree_with_one_path_bit_for_bit(window: ModuleType, chain: bool) -> None:
    """Without parents the causal convolution's tree is a chain."""
    name, tree = ("conv_window", conv_tree) if window is conv_window else ("shortconv_scan", shortconv_tree)
    call = drawn(name, replace(Options(t=6, keep="none"), write=False))
    y = call.run(window)[call.rows].clone()
    parents = torch.arange(-1, 5).repeat(4, 1) if chain else None
    given = {name: x for name, x in call.given.items() if name not in ("write_state", "keep")}
    run = vars(tree)[tree.__name__.rpartition(".")[2]]
    assert torch.equal(run(**given, parents=parents)[call.rows], y)


def test_siblings_may_change_places() -> None:
    call = drawn("conv_tree", Options(t=5, keep="none", padding=False))
    call["u"].nan_to_num_(0.5)
    parents, other = torch.tensor([[-1, 0, 0, 1, 2]] * 4), torch.tensor([[-1, 0, 0, 2, 1]] * 4)
    order = [0, 2, 1, 3, 4]  # the children 1 and 2 change places; so do their parents' names
    y = call.run(conv_tree, parents=parents, out=None)
    swapped = call.run(conv_tree, u=call["u"][:, order].contiguous(), parents=other, out=None)
    assert torch.equal(y[:, order], swapped)


def test_a_prompt_has_the_bits_of_a_window() -> None:
    call, other = (drawn("shortconv_scan", short(t=6, padding=False)) for _ in range(2))
    y = call.run(shortconv_scan)
    run: dict[str, Any] = {name: other[name].flatten(0, 1).contiguous() for name in "BCx"}
    given = {name: other[name] for name in ("S", "weight", "bias", "slots")}
    found = shortconv_packed.shortconv_packed(**given, **run, bounds=torch.arange(0, 25, 6))
    assert torch.equal(found.view(y.shape), y)
    assert torch.equal(other["S"][other.named], call["S"][call.named])
