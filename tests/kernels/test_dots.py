"""Products that lose nothing of an fp32 operand: by the unit matrix with ==, of fp32 operands to 2 ulp."""

from types import ModuleType

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from ssmspec_kernels.shared import dots
from tests.kernels.mutants import mutated
from tests.kernels.tensors import DTYPES

N = 16


@triton.jit
def _product(
    x, y, acc, out, N: tl.constexpr, DOT: tl.constexpr, ONTO: tl.constexpr, SPLIT: tl.constexpr, NINTH: tl.constexpr
):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    if ONTO:
        tl.store(out + at, DOT(tl.load(acc + at), tl.load(x + at), tl.load(y + at)))
    elif SPLIT is None:
        tl.store(out + at, DOT(tl.load(x + at), tl.load(y + at)))
    else:
        tl.store(out + at, DOT(tl.load(x + at), tl.load(y + at), SPLIT, NINTH=NINTH))


def product(
    dot: object, x: Tensor, y: Tensor, acc: Tensor | None = None, split: bool | None = None, ninth: bool = True
) -> Tensor:
    out = torch.full((N, N), float("nan"))
    _product[(1,)](x, y, acc, out, N=N, DOT=dot, ONTO=acc is not None, SPLIT=split, NINTH=ninth)
    return out


def numbers(seed: int) -> Tensor:
    """All 24 bits in use, exponents from -20 to 20."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(
        rng.choice([-1, 1], (N, N)) * rng.uniform(1, 2, (N, N)) * 2.0 ** rng.integers(-20, 21, (N, N))
    ).float()


def check(module: ModuleType, form: str) -> None:
    """Every product by the unit matrix, and by signs and powers of two, is exact whatever the type of the activations."""
    x, one = numbers(1), (torch.eye(N) * torch.tensor([2.0, -0.5] * (N // 2))).to(DTYPES[form])
    by = one.float().diagonal()
    assert torch.equal(product(module.dot_left, x, one), x * by)
    assert torch.equal(product(module.dot_right, one, x), by[:, None] * x)
    assert torch.equal(product(module.dot_onto, x, one, torch.zeros(N, N)), x * by)
    ints = torch.arange(-N * N // 2, N * N // 2).reshape(N, N).float()
    assert torch.equal(product(module.dot_onto, ints.fliplr(), one, ints), ints + ints.fliplr() * by)
    assert torch.equal(product(module.dot_inputs, ints.to(DTYPES[form]), one), ints.to(DTYPES[form]).float() * by)


def check_both(module: ModuleType, split: bool, ninth: bool = True) -> None:
    """Two fp32 operands: exact by the unit matrix on either side; of a diagonal and a permuted one within 2 ulp."""
    x, y, one = numbers(2), numbers(3), torch.eye(N)
    assert torch.equal(product(module.dot_both, x, one, split=split, ninth=ninth), x)
    assert torch.equal(product(module.dot_both, one, x, split=split, ninth=ninth), x)
    for k in range(N):
        a, b = torch.diag(x[k]), torch.diag(y[k]).roll(1, 1)
        want = x[k].double() * y[k].double()
        found = product(module.dot_both, a, b, split=split, ninth=ninth).roll(-1, 1).diagonal().double()
        assert float(((found - want) / want).abs().max()) <= 2.0**-22


def check_all(module: ModuleType) -> None:
    for form in ("fp32", "bf16", "fp16"):
        check(module, form)
    check_both(module, True)
    check_both(module, True, ninth=False)


@pytest.mark.parametrize("form", ["fp32", "bf16", "fp16"])
def test_products_of_an_fp32_operand_and_activations_keep_all_its_bits(form: str) -> None:
    check(dots, form)


@pytest.mark.parametrize(("split", "ninth"), [(True, True), (True, False), (False, True)])
def test_products_of_two_fp32_operands_are_accurate_as_fp32(split: bool, ninth: bool) -> None:
    check_both(dots, split, ninth)


@pytest.mark.interpreter
@pytest.mark.parametrize(("ninth", "lost"), [(True, 0.0), (False, 2.0**-32)])
def test_the_ninth_product_is_taken_where_it_is_asked_for(ninth: bool, lost: float) -> None:
    """a = 1 + 2^-8 + 2^-16, one bit in each part: in a a - a (1 + 2^-8) the parts of (1 + 2^-8) fall out, a 2^-16 is left."""
    a = 1 + 2.0**-8 + 2.0**-16
    x, y = torch.zeros(N, N), torch.zeros(N, N)
    x[0, :2], y[:2, 0] = torch.tensor([a, -a]), torch.tensor([a, a - 2.0**-16])
    assert float(product(dots.dot_both, x, y, split=True, ninth=ninth)[0, 0]) == a * 2.0**-16 - lost


FAULTS = [
    ("    acc = tl.dot(lo, y_hi, acc=acc, out_dtype=tl.float32)\n", ""),
    ("    acc = tl.dot(hi, y_lo, acc=acc, out_dtype=tl.float32)\n", ""),
    ("    acc = tl.dot(mid, y_mid, acc=acc, out_dtype=tl.float32)\n", ""),
    (
        "        acc = tl.dot(mid, y_lo, out_dtype=tl.float32)",
        "        acc = tl.dot(mid, y_hi, out_dtype=tl.float32)",
    ),
    ("tl.dot(hi, y_mid, acc=acc", "tl.dot(y_mid, hi, acc=acc"),
    ("bits & -65536", "bits & -131072"),
    ("    mid, rest = cut(rest)\n", "    mid, _ = cut(rest)\n"),
    (
        "        acc = tl.dot(x, lo, out_dtype=tl.float32)\n        acc = tl.dot(x, mid, acc=acc, ",
        "        acc = tl.dot(x, mid, ",
    ),
    ("tl.dot(x, y, out_dtype=tl.float32)", "tl.dot(y, x, out_dtype=tl.float32)"),
]


@pytest.mark.parametrize(("old", "new"), FAULTS)
def test_a_planted_fault_is_caught(old: str, new: str) -> None:
    mutant = mutated(dots, old, new)
    with pytest.raises(AssertionError):
        check_all(mutant)
