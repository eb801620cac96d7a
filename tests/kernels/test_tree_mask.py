"""`tree_mask` against the oracle's mask: equality, in every layout."""

from types import ModuleType

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.attention import tree_mask as module
from ssmspec_ref import tree
from tests.trees import SHAPES, packed, parents_of

from .accept_cases import gapped
from .mutants import caught, mutated
from .tensors import far

CASES = [(1, 0), (2, 1), (7, 2), (17, 3), (33, 4), (128, 5)]


def draw(nodes: int, seed: int) -> np.ndarray:
    """Every shape of tree, from one node to the widest, and a row that takes no part."""
    rng = np.random.default_rng(seed)
    trees = [parents_of(shape, int(rng.integers(1, nodes + 1)), seed) for shape in SHAPES]
    return packed([*trees, parents_of("random", nodes, seed), np.array([], dtype=np.int64)], nodes)


def judge(kernel: ModuleType, nodes: int, seed: int) -> bool:
    parents = draw(nodes, seed)
    ancestors = gapped(np.zeros((*parents.shape, nodes)), torch.bool, 1)
    depths = gapped(np.zeros(parents.shape), torch.int32, 99)
    kernel.tree_mask(gapped(parents, torch.int32, 5), ancestors=ancestors, depths=depths)
    wide, deep = ancestors._base, depths._base
    gaps = wide is not None and deep is not None and bool(wide[:, ::2].all()) and bool((deep[::2] == 99).all())
    same = np.array_equal(ancestors.numpy(), tree.ancestors(parents))
    return gaps and same and np.array_equal(depths.numpy(), tree.depths(parents))


@pytest.mark.parametrize(("nodes", "seed"), CASES)
def test_mask_and_depths_equal_the_oracles_and_gaps_stay(nodes: int, seed: int) -> None:
    assert judge(module, nodes, seed)


def test_depths_beyond_2_to_the_31_elements_are_written() -> None:
    parents = torch.from_numpy(draw(33, 6)[:1])
    depths = far(torch.full(parents.shape, 99, dtype=torch.int32), 1)
    module.tree_mask(parents, depths=depths)
    assert np.array_equal(depths.numpy(), tree.depths(parents.numpy()))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_outputs_that_are_not_given_are_made(dtype: torch.dtype) -> None:
    parents = draw(9, 8)
    ancestors, depths = module.tree_mask(torch.from_numpy(parents).to(dtype))
    assert depths.dtype == dtype
    assert np.array_equal(ancestors.numpy(), tree.ancestors(parents))
    assert np.array_equal(depths.numpy(), tree.depths(parents))


@pytest.mark.parametrize(("nodes", "index"), [(13, torch.int64), (40, torch.int32)])
def test_bytes_are_the_closed_form_and_no_access_is_outside(nodes: int, index: torch.dtype) -> None:
    parents = torch.from_numpy(packed([parents_of("binary", nodes), parents_of("chain", nodes)], nodes)).to(index)
    ancestors, depths = torch.empty(2, nodes, nodes, dtype=torch.bool), torch.empty(2, nodes, dtype=index)
    with watch(parents=parents, ancestors=ancestors, depths=depths) as seen:
        module.tree_mask(parents, ancestors=ancestors, depths=depths)
    assert seen.distinct_bytes() == module.traffic_bytes(2, nodes, index=index.itemsize)
    assert seen.stored("ancestors").requested == 2 * nodes * nodes
    assert seen.outside == seen.races == []


@pytest.mark.parametrize("row", [[-1, 1, 7, 2], [-1, 3, 1, 1], [3, 0, 1, 2], [2**31 - 1, 9, -9, 0]])
def test_parents_that_are_no_tree_neither_hang_nor_reach_outside(row: list[int]) -> None:
    parents = torch.tensor([row])
    ancestors, depths = torch.empty(1, 4, 4, dtype=torch.bool), torch.empty(1, 4, dtype=torch.int64)
    with watch(parents=parents, ancestors=ancestors, depths=depths) as seen:
        module.tree_mask(parents, ancestors=ancestors, depths=depths)
    assert seen.outside == []
    assert not np.triu(ancestors[0].numpy(), 1).any()


MUTANTS = {
    "nodes see their parent only": ("seen = seen | (up", "seen = (up"),
    "nodes do not see themselves": ("up = tl.where(own >= -1, i, -1)", "up = tl.where(own >= -1, own, -1)"),
    "padding sees itself": ("tl.where(own >= -1, i, -1)", "tl.where(own >= -2, i, -1)"),
    "the root at depth 1": ("axis=1) - 1", "axis=1)"),
    "the mask turned": (
        "i.to(tl.int64)[:, None] * stride_anc_t + j.to(tl.int64)[None, :] * stride_anc_j",
        "i.to(tl.int64)[:, None] * stride_anc_j + j.to(tl.int64)[None, :] * stride_anc_t",
    ),
    "the first row's tree": ("row = parents + b * stride_par_b", "row = parents"),
    "the last column unwritten": ("(i < T)[:, None] & (j < T)[None, :]", "(i < T)[:, None] & (j < T - 1)[None, :]"),
    "the first block of nodes only": ("tl.program_id(0) * BLOCK_I + tl.arange", "tl.arange"),
    "writes past the last node": ("(i < T)[:, None] & (j < T)[None, :]", "(i < T)[:, None] & (j <= T)[None, :]"),
    "one hop": ("while tl.max(up, axis=0) >= 0:", "for _ in range(2):"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_caught(name: str) -> None:
    assert caught(mutated(module, *MUTANTS[name]), lambda kernel, case: judge(kernel, *case), CASES[:5])
