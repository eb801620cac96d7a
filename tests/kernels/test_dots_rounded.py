"""Products in bf16: an fp32 operand is rounded to nearest, not cut off, and the sum stays fp32."""

from types import ModuleType

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_kernels.shared import dots
from tests.kernels.mutants import mutated

N = 16


@triton.jit
def _product(x, y, out, N: tl.constexpr, DOT: tl.constexpr, BOTH: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    if BOTH:
        tl.store(out + at, DOT(tl.load(x + at), tl.load(y + at), True, ROUND=True))
    else:
        tl.store(out + at, DOT(tl.load(x + at), tl.load(y + at), ROUND=True))


def product(dot: object, x: Tensor, y: Tensor, both: bool = False) -> Tensor:
    out = torch.full((N, N), float("nan"))
    _product[(1,)](x, y, out, N=N, DOT=dot, BOTH=both)
    return out


def check(module: ModuleType) -> None:
    """By the unit matrix the operand comes back rounded; the sum of 16 times 129 takes more bits than bf16 has."""
    x = torch.linspace(-3, 5, N * N).reshape(N, N)
    one, rounded = torch.eye(N), x.bfloat16().float()
    assert not torch.equal(rounded, x)
    assert torch.equal(product(module.dot_left, x, one.bfloat16()), rounded)
    assert torch.equal(product(module.dot_right, one.bfloat16(), x), rounded)
    assert torch.equal(product(module.dot_both, x, one, both=True), rounded)
    assert torch.equal(product(module.dot_both, one, x, both=True), rounded)
    ones, odd = torch.ones(N, N), torch.full((N, N), 129.0)
    assert torch.equal(product(module.dot_left, odd, ones.bfloat16()), N * odd)


def test_an_operand_is_rounded_once_and_the_sum_is_fp32() -> None:
    check(dots)


LEFT = 'activations y, summed in fp32 (2) (3); (5) if ROUND."""\n    if ROUND:\n        acc = tl.dot('
RIGHT = 'an fp32 block y, summed in fp32 (2) (3); (5) if ROUND."""\n    if ROUND:\n        acc = tl.dot('
BOTH = 'otherwise in fp32 (3); (5) if ROUND."""\n    if ROUND:\n        acc = tl.dot('
FAULTS = [
    (LEFT + "x.to(tl.bfloat16)", LEFT + "cut(x)[0]"),
    (RIGHT + "x.to(tl.bfloat16), y.to(tl.bfloat16)", RIGHT + "x.to(tl.bfloat16), cut(y)[0]"),
    (BOTH + "x.to(tl.bfloat16), y.to(tl.bfloat16)", BOTH + "x.to(tl.bfloat16), cut(y)[0]"),
]


@pytest.mark.parametrize(("old", "new"), FAULTS, ids=["left", "right", "both"])
def test_a_planted_fault_is_caught(old: str, new: str) -> None:
    mutant = mutated(dots, old, new)
    with pytest.raises(AssertionError):
        check(mutant)
