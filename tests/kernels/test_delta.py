"""The launchers of the delta rule and of Kimi Delta Attention: what every launcher is held to, and what is theirs alone."""

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from perf_gates.static.compiled import SHARED
from ssmspec_kernels.delta import (  # noqa: F401  # the kernels whose tests these are
    delta_apply,
    delta_chunked,
    delta_scan,
    delta_snapshots,
    delta_solve,
    delta_tree,
)
from ssmspec_kernels.delta.delta_tree_products import launch_products
from ssmspec_kernels.kda import kda_commit, kda_pairs, kda_scan, kda_snapshots, kda_tree  # noqa: F401
from ssmspec_ref import tree
from tests.kernels import delta_plot as delta
from tests.kernels import delta_subjects, kda_subjects
from tests.kernels.delta_faults import FAULTS  # noqa: F401
from tests.kernels.delta_plot import Options, kda
from tests.kernels.delta_subjects import CHUNKED, SCAN, SNAPSHOTS, TREE
from tests.kernels.laws import (  # noqa: F401
    Subject,
    bits,
    check_bound,
    check_steps,
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
from tests.kernels.tensors import doubles
from tests.trees import packed

SUBJECTS = [*delta_subjects.SUBJECTS, *kda_subjects.SUBJECTS]

# --- scans, and the state after every token ---


def test_planted_arithmetic_across_tokens_passes_single_steps_and_is_caught_by_integers() -> None:
    """A state that grows by a rounding with every token: less than a bound shows."""
    right = "return o, tl.fma(k[:, None], u[None, :], a * state)"
    mutant = mutated(delta_scan, right, f"{right} * (1.0 + 2.0**-23)", at="advance")
    check_steps(SCAN, mutant, Options(t=3, how={"fused": False}))
    with pytest.raises(AssertionError):
        check_bound(SCAN, mutant, Options(t=7, exact=True))


KEEPING = [(SNAPSHOTS, SCAN), (kda_subjects.SNAPSHOTS, kda_subjects.SCAN)]


@pytest.mark.parametrize(("of", "scan", "o"), [(of, scan, of.cover[i]) for of, scan in KEEPING for i in (0, 2)])
def test_every_state_is_that_of_a_shorter_scan_bit_for_bit(of: Subject, scan: Subject, o: Options) -> None:
    call = of.draw(o)
    call.run(of.module)
    for t in range(o.t):
        shorter = scan.draw(o)
        shorter.run(scan.module, fused=False, **shorter.cut(slice(t + 1)))
        for row in call.rows:
            if (place := int(call["places"][row, t])) >= 0:
                assert torch.equal(call["S"][place], shorter["S"][int(call["slots"][row])])


# --- windows by products ---


@pytest.mark.parametrize("i", [0, 7, 3])
def test_a_window_by_products_is_the_scan_within_both_bounds(i: int) -> None:
    o = CHUNKED.cover[i]
    solved, scanned = CHUNKED.draw(o), SCAN.draw(o)
    bounds = delta.scanned(solved, order="chunked"), delta.scanned(scanned)
    solved.run(delta_chunked)
    scanned.run(delta_scan)
    for name, index, at in (("out", solved.rows, 0), ("S", solved.named, 1)):
        apart = doubles(solved[name][index]) - doubles(scanned[name][index])
        assert (abs(apart) <= bounds[0][at].error + bounds[1][at].error).all()


def same_gates(of: Subject, o: Options) -> bool:
    """Whether gates in bf16 are taken as the fp32 numbers that they are."""
    narrow, wide = of.draw(o), of.draw(o)
    for name in ("g", "beta"):
        narrow[name] = narrow[name].bfloat16()
        wide[name] = narrow[name].float()
    for call in (narrow, wide):
        call.run(of.module)
    return same(bits(narrow, "out", "S"), bits(wide, "out", "S"))


@pytest.mark.parametrize("channel", [False, True])
def test_gates_in_bf16_are_taken_as_the_fp32_numbers_that_they_are(channel: bool) -> None:
    assert same_gates(CHUNKED, Options(t=7, io="bf16", channel=channel, k=6, v=9, seed=2))
    assert same_gates(TREE, Options(b=1, t=34, raw=True, channel=channel, g=1, h=1, k=4, v=5, tree="chain", seed=2))


def test_fp32_is_kept_with_bf16_activations() -> None:
    """An fp32 operand rounded to bf16 before a product would cost 2^-9; the state is accurate to fp32."""
    call = CHUNKED.draw(Options(t=6, io="bf16", k=32, v=32))
    _, S = delta.scanned(call, order="chunked")
    call.run(delta_chunked)
    assert abs(call.state() - S.value).max() <= 2.0**-20 * abs(S.value).max()


# --- windows in two launches ---


@pytest.mark.parametrize(("programs", "expected"), [(127, False), (128, True)])
def test_many_heads_of_rows_take_two_launches(programs: int, expected: bool) -> None:
    assert delta_chunked.two_are_faster(torch.empty(0), programs) is expected


@pytest.mark.parametrize(
    ("heads", "tokens", "write", "expected"),
    [
        (4096, 8, True, (2, 1)), (511, 9, True, (2, 1)), (512, 9, True, (2, 2)), (2047, 9, True, (2, 2)),
        (2048, 9, True, (4, 2)), (4096, 8, False, (2, 1)), (2047, 9, False, (2, 1)), (2048, 9, False, (2, 2)),
    ],
)  # fmt: skip
def test_tiles_follow_heads_and_tokens(heads: int, tokens: int, write: bool, expected: tuple[int, int]) -> None:
    assert delta_apply.tile(heads, tokens, write) == expected


@pytest.mark.parametrize(
    ("capability", "tokens", "write", "expected"),
    [((9, 0), 8, True, 128), ((9, 0), 9, True, None), ((9, 0), 8, False, None), ((10, 0), 8, True, None)],
)
def test_registers_are_limited_where_it_was_measured(
    capability: tuple[int, int], tokens: int, write: bool, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    on_device: Any = SimpleNamespace(is_cuda=True, device=None)
    assert delta_apply.registers(on_device, tokens, write) == expected
    assert delta_apply.registers(torch.empty(0, device="cpu"), tokens, write) is None


# --- trees ---


@pytest.mark.parametrize(
    "o",
    [
        Options(t=13, io="bf16", l2_norm=False, scale=0.7, k=6, v=18, seed=1),
        kda(t=19, io="bf16", raw=True, bias=True, g=1, h=2, k=4, v=5),
    ],
)
def test_a_tree_of_one_path_is_the_window(o: Options) -> None:
    call, other = TREE.draw(replace(o, tree="chain")), CHUNKED.draw(o)
    (_, _, expected), *_ = delta.of_nodes(call)
    assert expected is not None
    call.run(delta_tree)
    other.run(delta_chunked, write_state=False)
    apart = doubles(call["out"])[call.rows] - doubles(other["out"])[call.rows]
    assert (abs(apart) <= 2 * expected.error).all()


@pytest.mark.parametrize(
    ("of", "scan", "o"),
    [(TREE, SCAN, Options(t=21, k=6, v=9)), (kda_subjects.TREE, kda_subjects.SCAN, kda(b=2, t=11, g=1, h=2, k=6, v=9))],
)
def test_every_path_of_a_tree_is_a_scan_along_it_exactly_on_integers(of: Subject, scan: Subject, o: Options) -> None:
    o = replace(o, exact=True, padding=False, tree="several", seed=3)
    call, alone = of.draw(o), scan.draw(o)
    y = call.run(of.module)
    for row in range(o.b):
        for node in range(0, o.t, 3):
            if call.dead[row, node]:
                continue
            path = np.flatnonzero(delta.seen(call)[row, node])
            along = {name: call[name][row : row + 1, path] for name in delta.TOKENS}
            found = alone.run(scan.module, **along, slots=call["slots"][row : row + 1], write_state=False, out=None)
            assert torch.equal(found[0, -1], y[row, node])


def test_blocks_of_pairs_that_no_node_sees_are_skipped() -> None:
    """Three chains of 16 nodes, two of which begin at node 0: the block of the third with the second is empty."""
    call = kda_subjects.TREE.draw(kda(b=1, t=48, g=1, h=1, k=4, v=5, padding=False, tree="chain"))
    parents = packed([np.array([-1, *range(15), 0, *range(16, 31), 0, *range(32, 47)])], 48)
    call.run(kda_tree, ancestors=torch.from_numpy(tree.ancestors(parents)))
    blocks = [(i, j) for i in range(0, 48, 16) for j in range(0, i + 1, 16)]
    assert [(i, j) for i, j in blocks if call["pairs"][0, 0, :, i : i + 16, j : j + 16].isnan().all()] == [(32, 16)]


@pytest.mark.parametrize("many", [1, 64, 65, 2048])
@pytest.mark.parametrize("nodes", [16, 32, 64, 128])
def test_a_tile_is_a_power_of_two_of_at_least_sixteen_channels(many: int, nodes: int) -> None:
    for v in (1, 16, 100, 128, 256):
        block, warps = kda_tree.tile(many, v, nodes)
        assert block in (16, 32, 64, 128)
        assert warps in (4, 8)
        assert block >= 64 or nodes <= 32  # smaller ones were compiled to wrong code (`kda_tree.LEAST_V`)


@pytest.mark.nightly
def test_the_largest_tree_in_fp32_fits_the_shared_memory_of_an_sm90() -> None:
    """With Triton's own three stages it takes 278,528 bytes, and an H200 refuses it. Nightly: it compiles for 20 s."""
    command = [sys.executable, "-c", LARGEST_IN_FP32]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert 0 < int(ran.stdout) <= SHARED[90]


LARGEST_IN_FP32 = """
import torch
from perf_gates.static.capture import build, launches_of
from ssmspec_kernels.kda import kda_tree

def meta(*shape):
    return torch.empty(*shape, device="meta")

S, q, k, v = meta(1, 4, 128, 128), meta(1, 128, 2, 128), meta(1, 128, 2, 128), meta(1, 128, 4, 128)
g, beta, mask = meta(1, 128, 4, 128), meta(1, 128, 4), torch.empty(1, 128, 128, dtype=torch.bool, device="meta")
launches = launches_of(lambda: kda_tree.kda_tree(S, q, k, v, g, beta, mask))
print(max(build(launch, 90).compiled.metadata.shared for launch in launches))
"""


@pytest.mark.parametrize(("capability", "trap"), [(9, False), (10, True), (12, True)])
def test_a_large_tree_is_solved_in_blocks_on_a_gpu_where_the_inverse_is_a_trap(
    capability: int, trap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (capability, 0))
    assert delta_tree.is_trap(torch.device("cuda")) is trap
    assert not delta_tree.is_trap(torch.device("cpu"))
    monkeypatch.setattr(delta_tree, "is_trap", lambda device: trap)
    launched: list[object] = []

    def noted(*args: Any) -> None:
        launched.append(args)
        launch_products(*args)

    monkeypatch.setattr(delta_tree, "launch_products", noted)
    check_bound(TREE, delta_tree, TREE.cover[6])
    assert bool(launched) is not trap
