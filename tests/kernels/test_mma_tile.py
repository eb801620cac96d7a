"""A tile of the state between registers and memory: every element in its own place, whatever the number of warps."""

from types import ModuleType

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_kernels.shared import mma_tile
from tests.kernels.mutants import mutated


@triton.jit
def _stored(tile, out, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, ROWS: tl.constexpr, TO_MEMORY: tl.constexpr):
    at = tl.arange(0, BLOCK_P)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    p, n = ROWS(BLOCK_P, BLOCK_N)
    tl.store(out + p[:, None] * BLOCK_N + n, TO_MEMORY(tl.load(tile + at), BLOCK_P, BLOCK_N))


def held(x: Tensor) -> Tensor:
    """(p, n) with its columns where a product holds them: 4 c + 2 j + i of 16 at 8 j + 2 c + i."""
    p, n = x.shape
    return x.reshape(p, n // 16, 4, 2, 2).transpose(2, 3).reshape(p, n).contiguous()


def check(module: ModuleType, p: int, n: int) -> None:
    x, out = torch.arange(p * n).reshape(p, n).float(), torch.full((p, n), float("nan"))
    _stored[(1,)](held(x), out, BLOCK_P=p, BLOCK_N=n, ROWS=module.memory_rows, TO_MEMORY=module.to_memory)
    assert torch.equal(out, x)


SIZES = [(16, 16), (16, 64), (32, 32), (64, 16)]


@pytest.mark.parametrize(("p", "n"), SIZES)
def test_every_element_of_a_tile_goes_back_to_its_place(p: int, n: int) -> None:
    check(mma_tile, p, n)


def check_all(module: ModuleType) -> None:
    for p, n in SIZES:
        check(module, p, n)


FAULTS = [
    ("row // 8 % warps", "row // 7 % warps"),
    ("row // (8 * warps) % 2", "row // 8 % 2"),
    ("(3, 1, 0, 2, 5, 4, 6)", "(3, 1, 0, 2, 4, 5, 6)"),
    ("(row // BLOCK_P * 16)", "(row // BLOCK_P * 0)"),
]


@pytest.mark.parametrize(("old", "new"), FAULTS, ids=[new for _, new in FAULTS])
def test_planted_fault_is_caught(old: str, new: str) -> None:
    mutant = mutated(mma_tile, old, new)
    with pytest.raises(AssertionError):
        check_all(mutant)
