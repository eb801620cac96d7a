"""The interpreter's repairs against torch, and the watch over memory against kernels whose accesses are known."""

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from conformance.interpreter import faithful, memory, quick, rounding

pytestmark = pytest.mark.interpreter

HARD = torch.tensor([1.9999, -3.9999, 3.4e38, -3.39e38, float("inf"), -float("inf"), 1e-40, -0.0, 1 + 2**-8, 1 + 3 * 2**-8])


def values(count: int, seed: int = 0) -> torch.Tensor:
    x = torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 3
    return torch.cat([HARD, x])[:count]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)))


@triton.jit
def cast_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


@triton.jit
def binary_kernel(x, y, out, N: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    if OP == "add":
        r = a + b
    elif OP == "sub":
        r = a - b
    elif OP == "mul":
        r = a * b
    elif OP == "max":
        r = tl.maximum(a, b)
    elif OP == "where":
        r = tl.where(a > b, a, -b)
    else:
        r = tl.abs(a)
    tl.store(out + i, r)


@triton.jit
def reduce_kernel(x, out, N: tl.constexpr, OP: tl.constexpr):
    a = tl.load(x + tl.arange(0, N))
    tl.store(out, tl.sum(a, 0) if OP == "sum" else tl.max(a, 0))


@triton.jit
def dot_kernel(x, y, out, N: tl.constexpr, PRECISION: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(out + at, tl.dot(tl.load(x + at), tl.load(y + at), input_precision=PRECISION))


@pytest.mark.parametrize(("source", "target"), [("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "bfloat16")])
def test_casts_equal_torch_bit_for_bit(source: str, target: str) -> None:
    x = values(4096).to(getattr(torch, source))
    x[7] = float("nan")
    out = torch.empty(4096, dtype=getattr(torch, target))
    cast_kernel[(1,)](x, out, N=4096)
    assert same(out, x.to(out.dtype))


@pytest.mark.parametrize("op", ["add", "sub", "mul", "max", "where", "abs"])
def test_bf16_arithmetic_equals_torch_bit_for_bit(op: str) -> None:
    x, y = values(1024, 1).bfloat16(), values(1024, 2).flip(0).bfloat16()
    out = torch.empty_like(x)
    binary_kernel[(1,)](x, y, out, N=1024, OP=op)
    expected = {
        "add": x + y,
        "sub": x - y,
        "mul": x * y,
        "max": torch.maximum(x, y),
        "where": torch.where(x > y, x, -y),
        "abs": x.abs(),
    }
    assert same(out, expected[op])


def test_bf16_reductions_are_summed_in_fp32() -> None:
    x = values(1024, 3)[16:].contiguous()[:512].bfloat16()
    out = torch.empty(1, dtype=torch.bfloat16)
    reduce_kernel[(1,)](x, out, N=512, OP="sum")
    total, terms = x.double().sum(), x.double().abs().sum()
    # Any order of 511 fp32 additions, then one rounding to bf16.
    assert abs(out.double() - total).item() <= 511 * 2**-24 * terms.item() * 1.01 + 2**-8 * abs(total).item()
    reduce_kernel[(1,)](x, out, N=512, OP="max")
    assert out.item() == x.max().item()


def dot_error(dtype: torch.dtype, precision: str) -> tuple[float, float]:
    """The largest error of a 32 x 32 product, and the same against operands rounded to tf32; in units of sum |x||y|."""
    x = torch.randn(32, 32, generator=torch.Generator().manual_seed(4)).to(dtype)
    y = torch.randn(32, 32, generator=torch.Generator().manual_seed(5)).to(dtype)
    out = torch.empty(32, 32)
    dot_kernel[(1,)](x, y, out, N=32, PRECISION=precision)
    scale = x.double().abs() @ y.double().abs()
    rounded = [torch.from_numpy(rounding.to_tf32(v.float().numpy())).double() for v in (x, y)]
    plain = ((out.double() - x.double() @ y.double()).abs() / scale).max().item()
    return plain, ((out.double() - rounded[0] @ rounded[1]).abs() / scale).max().item()


GAMMA_32 = 32 * 2**-24 / (1 - 32 * 2**-24)  # fp32 sums of 32 terms, any order


def test_a_bf16_dot_has_only_the_error_of_fp32_sums() -> None:
    assert dot_error(torch.bfloat16, "ieee")[0] <= GAMMA_32


def test_an_ieee_dot_is_fp32() -> None:
    assert dot_error(torch.float32, "ieee")[0] <= GAMMA_32


def test_a_tf32_dot_rounds_its_operands_and_shows() -> None:
    plain, against_rounded = dot_error(torch.float32, "tf32")
    assert against_rounded <= GAMMA_32
    assert GAMMA_32 < plain <= 2 * 2**-11 + 2**-22 + GAMMA_32


def test_tf32_rounding_keeps_ten_bits() -> None:
    x = values(4096, 6)[16:].numpy()
    kept = rounding.to_tf32(x)
    assert not np.any(kept.view(np.uint32) & 0x1FFF)
    assert np.max(np.abs(kept.astype(np.float64) - x) / np.abs(x)) <= 2.0**-11


def test_nothing_stays_installed_and_the_unrepaired_interpreter_is_wrong() -> None:
    """Were the repair a no-op, the tests above would prove nothing."""
    x = values(1024, 7)[16:].contiguous()[:512]
    out = torch.empty(512, dtype=torch.bfloat16)
    builder = interpreter.interpreter_builder
    patched = {name: vars(builder).pop(name) for name in list(vars(builder)) if name == "cast_impl"}
    try:
        cast_kernel[(1,)](x, out, N=512)
    finally:
        vars(builder).update(patched)
    assert not torch.equal(out, x.bfloat16())
    before = {name for name in vars(builder) if name.startswith("create_")}
    with faithful.faithful():
        assert {name for name in vars(builder) if name.startswith("create_")} == before


# --- time ----------------------------------------------------------------------------------------------------------


@triton.jit
def _halved(x, TIMES: tl.constexpr):
    return x if TIMES == 0 else _halved(x * 0.5, TIMES - 1)


@triton.jit
def nested_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, _halved(tl.load(x + i).to(tl.float32), 3).to(tl.bfloat16))


def test_builtins_are_replaced_once_a_launch_and_stand_again_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The placed repair keeps the calls of device functions from replacing them again; the bits are those without it."""
    x, calls = values(64, 3)[:64].contiguous(), list[Any]()
    patch = next(c.cell_contents for c in interpreter._patch_lang.__closure__ if c.cell_contents.__name__ == "_patch_lang")

    def told(fn: Any) -> Any:
        calls.append(fn)
        return patch(fn)

    results = []
    for patched in (quick._once(told), told):
        monkeypatch.setattr(interpreter, "_patch_lang", patched)
        out = torch.empty(64, dtype=torch.bfloat16)
        nested_kernel[(2,)](x, out, N=64)
        results.append((len(calls), out))
        calls.clear()
    assert [count for count, _ in results] == [1, 9]  # a launch; and two programs, each of four calls
    assert torch.equal(results[0][1], results[1][1])
    assert torch.equal(results[0][1], (x * 0.125).bfloat16())
    assert tl.core.is_builtin(tl.load)


def test_the_format_of_a_type_is_kept_by_its_name() -> None:
    types = [tl.float32, tl.bfloat16, tl.int1, tl.pointer_type(tl.float16)]
    types += [tl.block_type(t, [4, 2]) for t in types]
    kept = interpreter._get_np_dtype
    look = next(c.cell_contents for c in kept.__closure__ if getattr(c.cell_contents, "__name__", "") == "_get_np_dtype")
    assert [kept(t) for t in types] == [kept(t) for t in types] == [look(t) for t in types]


# --- memory --------------------------------------------------------------------------------------------------------


@triton.jit
def add_kernel(x, y, out, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    live = i < n
    tl.store(out + i, tl.load(x + i, mask=live) + tl.load(y + i, mask=live), mask=live)


@triton.jit
def broadcast_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + tl.program_id(0) * N + i, tl.load(x + i))


@triton.jit
def shift_kernel(x, N: tl.constexpr):
    """Each program writes what its neighbour reads."""
    p = tl.program_id(0)
    i = tl.arange(0, N)
    value = tl.load(x + p * N + i)
    tl.store(x + (p + 1) * N + i, value)


@triton.jit
def selected_kernel(x, y, out, count, in_x, in_y, ROWS: tl.constexpr, N: tl.constexpr):
    """Rows of x, and behind the first `count` those of y."""
    r, i = tl.arange(0, ROWS), tl.arange(0, N)
    rows = tl.where(r < count, x + r * N, y + (r - count) * N)
    live = tl.where(r < count, r < in_x, r - count < in_y)
    block = tl.load(rows[:, None] + i[None, :], mask=live[:, None] & (i < N)[None, :], other=0.0)
    tl.store(out + r[:, None] * N + i[None, :], block)


@triton.jit
def run_on_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i))


@triton.jit
def past_the_end_kernel(x, n, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(x + i, tl.zeros((N,), tl.float32), mask=i <= n)


@triton.jit
def count_kernel(total):
    tl.atomic_add(total, 1)


@pytest.mark.parametrize("n", [1, 127, 300])
def test_bytes_are_counted_exactly_under_a_mask(n: int) -> None:
    x, y, out = torch.ones(n), torch.ones(n), torch.empty(n)
    with memory.watch(x=x, y=y, out=out) as seen:
        add_kernel[(triton.cdiv(n, 128),)](x, y, out, n, N=128)
    assert [seen.loaded("x").requested, seen.loaded("y").distinct, seen.stored("out").requested] == [4 * n] * 3
    assert seen.distinct_bytes() == 12 * n
    assert seen.outside == seen.races == []


def test_a_read_by_every_program_is_requested_often_and_touched_once() -> None:
    x, out = torch.ones(64).bfloat16(), torch.empty(5 * 64).bfloat16()
    with memory.watch(x=x, out=out) as seen:
        broadcast_kernel[(5,)](x, out, N=64)
    assert (seen.loaded("x").requested, seen.loaded("x").distinct) == (5 * 128, 128)
    assert seen.races == []


def test_a_race_between_programs_is_seen() -> None:
    x = torch.ones(4 * 16)
    with memory.watch(x=x) as seen:
        shift_kernel[(3,)](x, N=16)
    assert seen.races
    assert "program" in seen.races[0]


def test_two_launches_do_not_race() -> None:
    x, y = torch.ones(16), torch.ones(16)
    with memory.watch(x=x, y=y) as seen:
        broadcast_kernel[(1,)](x, y, N=16)
        broadcast_kernel[(1,)](y, x, N=16)
    assert seen.races == []


def test_an_access_past_a_tensor_or_to_none_is_seen() -> None:
    backing = torch.ones(33)
    x = torch.ones(32)
    with memory.watch(x=x) as seen:
        past_the_end_kernel[(1,)](backing, 31, N=32)
    assert "no named tensor" in seen.outside[0]
    long = torch.ones(40)
    view = long[:32].clone()
    with memory.watch(view=view) as seen:
        past_the_end_kernel[(2,)](long, 32, N=32)
    assert len(seen.outside) == 2


@pytest.mark.parametrize(("count", "in_x", "in_y"), [(0, 8, 3), (5, 5, 3), (3, 2, 0), (8, 8, 0)])
def test_a_block_of_selected_pointers_is_counted_for_the_tensor_of_each_row(count: int, in_x: int, in_y: int) -> None:
    x, y, out = torch.ones(8, 16), torch.full((8, 16), 2.0), torch.empty(8, 16)
    with memory.watch(x=x, y=y, out=out) as seen:
        selected_kernel[(1,)](x, y, out, count, in_x, in_y, ROWS=8, N=16)
    rows = min(count, in_x), min(8 - count, in_y)
    assert (seen.loaded("x").requested, seen.loaded("y").requested) == (rows[0] * 64, rows[1] * 64)
    assert seen.distinct_bytes() == sum(rows) * 64 + 8 * 64
    assert seen.outside == seen.races == []
    assert out.sum().item() == rows[0] * 16 + rows[1] * 32


def test_a_selected_row_outside_its_tensor_is_seen() -> None:
    """The window has 4 rows, and a mask that is too wide asks for a fifth."""
    x, backing, out = torch.ones(8, 16), torch.ones(5 * 16), torch.empty(8, 16)
    y = torch.empty(0).set_(backing.untyped_storage()[: 4 * 64])
    with memory.watch(x=x, y=y, out=out) as seen:
        selected_kernel[(1,)](x, y, out, 3, 3, 5, ROWS=8, N=16)
    assert "no named tensor" in seen.outside[0]
    assert seen.loaded("y").requested == 4 * 64


def test_a_line_that_runs_on_into_another_tensor_is_seen() -> None:
    """Two tensors without a gap between them: the watch is told of two halves of one storage."""
    both, out = torch.ones(32), torch.empty(32)
    halves = [torch.empty(0).set_(both.untyped_storage()[:64]), torch.empty(0).set_(both.untyped_storage()[64:])]
    with memory.watch(x=halves[0], y=halves[1], out=out) as seen:
        run_on_kernel[(1,)](both, out, N=32)
    assert "load of x runs on into y" in seen.outside[0]


def test_atomics_are_no_races() -> None:
    total = torch.zeros(1, dtype=torch.int32)
    with memory.watch(total=total) as seen:
        count_kernel[(4,)](total)
    assert total.item() == 4
    assert seen.races == []
    assert seen.accesses[memory.ATOMICS, "total"].requested == 16
