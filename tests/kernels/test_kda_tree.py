"""Kimi Delta Attention over packed trees: every node beside the oracle, another tree for every row, no state written."""

import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from perf_gates.static.compiled import SHARED
from ssmspec_kernels.kda import kda_pairs
from ssmspec_kernels.kda import kda_tree as kernel
from ssmspec_kernels.kda.kda_scan import kda_scan
from ssmspec_ref import tree
from tests.kernels import delta_cases as cases
from tests.kernels import test_delta_tree as trees
from tests.kernels.delta_cases import Options
from tests.kernels.mutants import mutated
from tests.trees import packed, parents_of, path_to


def options(**changes: Any) -> Options:
    return Options(**{"channel": True, "g": 1, "h": 2, "k": 6, "v": 9, **changes})


COVER = [
    options(t=5, h=4, g=2, poison=7.0),
    options(t=13, io="bf16", raw=True, bias=True, lower=-5.0, v=18, seed=1),
    options(t=7, raw=True, state="bf16", io="fp16", gentle=True, l2_norm=False, scale=0.7, k=35, seed=2),
    options(t=19, io="bf16", strong=True, k=4, v=5, seed=3, poison=-3.0),
    options(t=1, h=3, seed=4),
    options(b=2, t=34, io="bf16", raw=True, bias=True, lower=-2.0, k=4, v=5, seed=5),
    options(b=1, t=33, raw=True, h=1, k=4, v=5, seed=6),
    options(b=1, t=65, io="bf16", h=1, k=5, v=3, seed=7),
]


def named(module: ModuleType) -> Any:
    """The launcher and its formula, under the names of those of the delta rule."""

    def traffic_bytes(*given: int, channel: bool, **more: int) -> int:
        assert channel
        found: int = module.traffic_bytes(*given, **more)
        return found

    return SimpleNamespace(delta_tree=module.kda_tree, traffic_bytes=traffic_bytes)


@pytest.mark.parametrize("o", COVER, ids=str)
def test_every_node_lies_within_the_bound_and_no_state_is_written(o: Options) -> None:
    trees.check(named(kernel), o, o.seed)


@pytest.mark.parametrize("block_v", [16, 32, 64])
def test_other_tiles_lie_within_the_bound(block_v: int) -> None:
    trees.check(named(kernel), options(t=6, io="bf16", v=37, seed=1), 1, block_v=block_v)


def test_every_path_of_a_tree_is_a_scan_along_it_exactly_on_integers() -> None:
    o = options(b=2, t=11)
    case, parents = cases.ints(o), trees.trees(o, 3)
    case.call(kernel.kda_tree, ancestors=torch.from_numpy(tree.ancestors(parents)))
    for row in range(o.b):
        for node in range(0, o.t, 3):
            if parents[row, node] != tree.PADDING:
                path = path_to(parents[row], node)
                along = {x: getattr(case, x)[row : row + 1, path].contiguous() for x in ("q", "k", "v", "g", "beta")}
                given: dict[str, Any] = {"slots": case.slots[row : row + 1], "l2_norm": False, "scale": 1.0}
                y = kda_scan(case.S, **along, **given, write_state=False)
                assert torch.equal(y[0, -1], case.out[row, node])


@pytest.mark.parametrize("o", [options(t=5, v=33), options(b=1, t=18, io="bf16", h=1)], ids=str)
def test_bytes_equal_the_formulas_and_no_state_is_stored(o: Options) -> None:
    """Of the scores between the launches only those of pairs that are seen are written and read."""
    case = cases.draw(o, padding=False)
    mask = torch.from_numpy(tree.ancestors(packed([parents_of("comb", o.t)] * o.b, o.t)))
    pairs = kda_pairs.scratch(o.b, o.h, o.t, mask.device)
    named = {name: getattr(case, name) for name in ("S", "q", "k", "v", "g", "beta", "out")} | {"pairs": pairs}
    with watch(**named, slots=case.slots, mask=mask) as seen:
        case.call(kernel.kda_tree, ancestors=mask, pairs=pairs)
    expected = kernel.traffic_bytes(o.b, o.t, o.g, o.h, o.k, o.v, io=case.q.element_size())
    expected += kda_pairs.traffic_bytes(int(mask.sum()), o.h)
    assert seen.distinct_bytes() - seen.loaded("slots").distinct == expected
    assert seen.loaded("S").requested == o.b * o.h * o.k * o.v * 4
    assert seen.stored("S").requested == 0
    assert seen.outside == seen.races == []


def test_blocks_of_pairs_that_no_node_sees_are_skipped() -> None:
    """Three chains of 16 nodes, two of which begin at node 0: the block of the third with the second is empty."""
    case = cases.draw(options(b=1, t=48, h=1, k=4, v=5), padding=False)
    parents = packed([np.array([-1, *range(15), 0, *range(16, 31), 0, *range(32, 47)])], 48)
    pairs = torch.full_like(kda_pairs.scratch(1, 1, 48, case.q.device), torch.nan)
    case.call(kernel.kda_tree, ancestors=torch.from_numpy(tree.ancestors(parents)), pairs=pairs)
    blocks = [(i, j) for i in range(0, 48, 16) for j in range(0, i + 1, 16)]
    assert [(i, j) for i, j in blocks if pairs[0, 0, :, i : i + 16, j : j + 16].isnan().all()] == [(32, 16)]


@pytest.mark.parametrize("many", [1, 64, 65, 2048])
@pytest.mark.parametrize("nodes", [16, 32, 64, 128])
def test_a_tile_is_a_power_of_two_of_at_least_sixteen_channels(many: int, nodes: int) -> None:
    for v in (1, 16, 100, 128, 256):
        block, warps = kernel.tile(many, v, nodes)
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


FAULTS = [
    ("- tl.trans(G_j)[:, None, :]", "- 0.0 * tl.trans(G_j)[:, None, :]", "kda_pairs_kernel"),
    ("tl.trans(q_i).to(tl.float32)[:, :, None]", "tl.trans(k_i).to(tl.float32)[:, :, None]", "kda_pairs_kernel"),
    ("for _ in range(PARTS):", "for _ in range(PARTS - 1):", "kda_pairs_kernel"),
    ("c += PART", "c += 0", "kda_pairs_kernel"),
    ("G_j = G_i if BLOCKS == 1", "G_j = G_i if BLOCKS > 0", "kda_pairs_kernel"),
    ("block += (pair >= n * (n + 1) // 2)", "block += (pair > n * (n + 1) // 2)", "kda_pairs_kernel"),
    ("(pair - block * (block + 1) // 2) * NODES", "pair % 2 * NODES", "kda_pairs_kernel"),
    ("at + ALL * ALL, to_key", "at, to_key", "kda_pairs_kernel"),
    ("(b * tl.num_programs(1) + h) * (2 * ALL * ALL)", "h * (2 * ALL * ALL)", "kda_pairs_kernel"),
    ("slot_of(slots, b) >= 0", "slot_of(slots, b) > 0", "kda_pairs_kernel"),
    ("at_anc = ancestors + b * stride_anc.b", "at_anc = ancestors", "kda_pairs_kernel"),
    ("BOUNDED=lower_bound is not None", "BOUNDED=False", "launch_pairs"),
    ("n[:, None] > n[None, :], beta_t", "n[:, None] >= n[None, :], beta_t", None),
    ("n[:, None] > n[None, :], beta_t[:, None] * r_k[:, None] *", "n[:, None] > n[None, :], r_k[:, None] *", None),
    ("at_pairs + BLOCK_T * BLOCK_T", "at_pairs", None),
    ("x * tl.reshape(both, x.shape)", "x", None),
    ("read += dot_both(x, state", "read = dot_both(x, state", None),
    ("m < BLOCK_T", "m >= BLOCK_T", None),
    ("v_t - r_k[:, None] * from_key", "v_t - from_key", None),
    ("at_anc = ancestors + b * stride_anc.b", "at_anc = ancestors", None),
    ("if slot >= 0:", "if slot > 0:", None),
    ("if slot >= 0:", "if slot != -2:", None),
    ("tl.program_id(0).to(tl.int64) * BLOCK_V", "0 * BLOCK_V", None),
    ("mask=(n < T)[:, None] & in_v[None, :])", "mask=(n < T)[:, None] & (j <= V)[None, :])", None),
    ("BOUNDED=lower_bound is not None", "BOUNDED=False", "kda_tree"),
    ("beta_t = sigmoid(beta_t)", "pass", "kda_tree_kernel"),
]  # fmt: skip


def check_all(module: ModuleType) -> None:
    for i in (0, 1, 2, 3, 5):
        trees.check(named(module), COVER[i], COVER[i].seed)
    trees.check(named(module), options(t=6, io="bf16", v=37, seed=1), 1, block_v=16)


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[new for _, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str | None) -> None:
    mutant = mutated(kernel, old, new, at=at)
    with pytest.raises(AssertionError):
        check_all(mutant)
