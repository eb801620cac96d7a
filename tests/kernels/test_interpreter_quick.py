"""What the interpreter is spared: operands of one type are not checked again, and widened as the language widens them."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic

from conformance.interpreter import quick

pytestmark = pytest.mark.interpreter

SPARED = ("binary_op_type_checking_impl", "broadcast_impl_value", "binary_op_sanitize_overflow_impl")
MADE = (quick._alike, quick._widened, quick._told)


@triton.jit
def mixed_kernel(x, k, out, N: tl.constexpr, M: tl.constexpr):
    i, j = tl.arange(0, N), tl.arange(0, M)
    row, column = tl.load(x + i), tl.load(x + j)[:, None]
    whole = row[None, :] * column - row  # blocks of one axis and of two
    whole = whole / 3 + tl.load(k) * 0.5 + tl.where(j[:, None] > i[None, :], whole, -1.0)
    halves = row.to(tl.bfloat16)[None, :] / column.to(tl.bfloat16) + (i % 3)[None, :] * 1
    halves = halves * 1 + (j * 2 + 1)[:, None] * 0.5
    tl.store(out + j[:, None] * N + i[None, :], whole + halves * (tl.load(k).to(tl.int64) << 1))


def run() -> torch.Tensor:
    x = torch.randn(16, generator=torch.Generator().manual_seed(5))
    out = torch.empty(4, 16)
    mixed_kernel[(1,)](x, torch.tensor([3], dtype=torch.int32), out, N=16, M=4)
    return out


def original(name: str) -> Callable[..., Any]:
    """The language's own, which the placed one holds."""
    held = inspect.getclosurevars(getattr(TritonSemantic, name)).nonlocals
    found = [f for f in held.values() if getattr(f, "__name__", "") == name]
    assert len(found) == 1
    return found[0]


def plainly(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    with monkeypatch.context() as patch:
        for name in SPARED:
            patch.setattr(TritonSemantic, name, original(name))
        return run()


def test_operands_are_widened_to_the_same_bits_as_by_the_language(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.equal(run(), plainly(monkeypatch))


def test_what_is_known_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = dict.fromkeys(SPARED, 0)

    def counted(name: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            asked[name] += 1
            return ask(*given)

        return call

    for name, made in zip(SPARED, MADE, strict=True):
        monkeypatch.setattr(TritonSemantic, name, made(counted(name, original(name))))
    run()
    first = dict(asked)
    run()
    again = {name: asked[name] - first[name] for name in SPARED}
    assert first["broadcast_impl_value"] > 1 == again["broadcast_impl_value"]  # one axis beside two, which is left alone
    assert 0 < again["binary_op_type_checking_impl"] < first["binary_op_type_checking_impl"]  # numbers are known
    assert asked["binary_op_sanitize_overflow_impl"] == 0


def swapped(widen: Callable[..., Any]) -> Callable[..., Any]:
    once = quick._widened(widen)
    return lambda self, lhs, rhs: once(self, lhs, rhs) if lhs.type.scalar.is_ptr() else once(self, rhs, lhs)


def narrow(check: Callable[..., Any]) -> Callable[..., Any]:
    """Quotients of bf16 stay bf16."""
    alike = quick._alike(check)
    return lambda self, lhs, rhs, a=False, b=False, arithmetic=True, quotient=False: alike(self, lhs, rhs, a, b, arithmetic)


def rounding(check: Callable[..., Any]) -> Callable[..., Any]:
    """A number is known by its whole part."""
    alike = quick._alike(check)
    return lambda self, lhs, rhs, *rest: alike(self, lhs, float(int(rhs)) if isinstance(rhs, float) else rhs, *rest)


@pytest.mark.parametrize(("name", "made"), [(SPARED[1], swapped), (SPARED[0], narrow), (SPARED[0], rounding)])
def test_operands_that_change_places_quotients_that_are_not_widened_and_other_numbers_are_seen(
    name: str, made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = plainly(monkeypatch)
    monkeypatch.setattr(TritonSemantic, name, made(original(name)))
    assert not torch.equal(run(), right)


def test_numbers_of_one_type_are_compared_and_pointers_are_still_checked() -> None:
    """Two pointers of one type are refused in a sum, as the language refuses them."""

    @triton.jit
    def kernel(x, out):
        tl.store(out, tl.load(x + x))

    with pytest.raises(Exception, match=r"(?i)pointer|invalid operands|unexpected type"):
        kernel[(1,)](torch.ones(1), torch.empty(1))
