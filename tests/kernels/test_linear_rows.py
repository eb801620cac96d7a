"""`linear_rows` against the float64 product, within the bound of its contract."""

import itertools
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.linear import linear_rows as module
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.contract import NumericContract, Storage
from ssmspec_ref.layers.linear import Linear

from .mutants import caught, mutated

TYPES: dict[str, Storage] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
CASES = [
    (1, 70, 37, "bfloat16", True),
    (3, 64, 16, "float32", False),
    (17, 33, 5, "float16", True),
    (2, 300, 50, "bfloat16", False),
    (40, 64, 5, "float32", True),
]


def draw(
    m: int, k: int, o: int, dtype: str, bias: bool, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    g = torch.Generator().manual_seed(seed)
    sizes, form = ((m, k), (o, k), (o,)), getattr(torch, dtype)
    x, W, b = (torch.empty(s, dtype=form).copy_(torch.randn(*s, generator=g, device="cpu")) for s in sizes)
    return x, W, b if bias else None


def f64(x: torch.Tensor) -> np.ndarray:
    return x.double().numpy()


def judge(kernel: ModuleType, m: int, k: int, o: int, dtype: str, bias: bool) -> eb.Comparison:
    x, W, b = draw(m, k, o, dtype, bias)
    out = torch.full((m, o), float("nan"), dtype=x.dtype)
    kernel.linear_rows(x, W, b, out=out, block_o=16, block_k=64)
    layer = Linear(f64(W), None if b is None else f64(b))
    contract = NumericContract(io=TYPES[dtype])
    expected = eb.linear(eb.exact(f64(x), contract), layer).store(TYPES[dtype])
    return eb.compare(f64(out), layer.apply(f64(x)), expected.error)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_product_lies_within_the_bound_of_its_contract(case: Any) -> None:
    found = judge(module, *case)
    assert found.passed, str(found)


def test_products_of_small_integers_are_exact() -> None:
    W = torch.tensor(np.random.default_rng(2).integers(-2, 3, (21, 90))).bfloat16()  # not by the launch ahead
    x = torch.tensor(np.random.default_rng(1).integers(-3, 4, (5, 90))).bfloat16()
    out = module.linear_rows(x, W, out=torch.empty(5, 21), block_o=16, block_k=64)
    assert torch.equal(out.double(), x.double() @ W.double().T)


@pytest.mark.parametrize("m", [1, 2, 7, 16, 17, 40, 128])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(m: int) -> None:
    x, W, b = draw(m, 130, 35, "bfloat16", True)
    together = module.linear_rows(x, W, b, block_o=16, block_k=64)
    alone = torch.cat([module.linear_rows(row[None], W, b, block_o=16, block_k=64) for row in x])
    assert torch.equal(together, alone)


def check_order(kernel: ModuleType) -> None:
    """The inputs of a block and their slices, which are the order of a sum, are one for all rows, early or not."""
    for o, size in itertools.product((37, 2560, 4096, 8191, 8192, 10576, 50288), (2, 4)):
        tiles = {kernel._tile(o, m, size, early) for m in range(1, 129) for early in (False, True)}
        assert len({(inputs, slices) for _, inputs, _, slices in tiles}) == 1, f"{o} outputs"


def test_a_row_is_summed_in_one_order_whatever_its_batch_and_early_or_not() -> None:
    check_order(module)


@pytest.mark.parametrize("change", ["256 if early else 512", "512 if m <= 16 else 256"])
def test_a_planted_order_of_its_own_is_caught(change: str) -> None:
    with pytest.raises(AssertionError):
        check_order(mutated(module, 'return outputs, row["narrow_block_k"],', f"return outputs, {change},"))


def test_a_row_has_the_same_bits_in_the_tile_of_an_early_start() -> None:
    x, W, b = draw(3, 130, 70, "bfloat16", True)
    made = [module.linear_rows(x, W, b, block_o=o, block_k=64, num_stages=s) for o, s in ((16, 3), (32, 4), (64, 3))]
    assert all(torch.equal(y, made[0]) for y in made[1:])


@pytest.mark.parametrize(("m", "k", "o", "bias"), [(1, 64, 32, False), (5, 70, 37, True), (17, 33, 16, True)])
def test_bytes_are_the_closed_form_and_the_weights_are_read_once(m: int, k: int, o: int, bias: bool) -> None:
    x, W, b = draw(m, k, o, "bfloat16", bias)
    out = torch.empty(m, o, dtype=torch.bfloat16)
    named = {"x": x, "W": W, "out": out} | ({} if b is None else {"bias": b})
    with watch(**named) as seen:
        module.linear_rows(x, W, b, out=out, block_o=16, block_k=64)
    assert seen.distinct_bytes() == module.traffic_bytes(m, k, o, bias=bias)
    assert seen.loaded("W").requested == 2 * o * k
    assert seen.outside == seen.races == []


def test_rows_and_weights_may_have_any_stride_between_rows() -> None:
    x, W, b = draw(3, 70, 37, "bfloat16", True)
    wide, padded = torch.full((3, 99), float("nan")).bfloat16(), torch.full((37, 80), float("nan")).bfloat16()
    padded[:, :70], wide[:, :70] = W, x  # W not by the launch ahead
    assert torch.equal(module.linear_rows(wide[:, :70], padded[:, :70], b), module.linear_rows(x, W, b))


MUTANTS = {
    "inputs past the end": ("else inside & (k0 + k < K)", "else inside"),
    "last block lost": ("for k0 in tl.range(0, K, BLOCK_K", "for k0 in tl.range(0, K - BLOCK_K + 1, BLOCK_K"),
    "sum started anew": ("tl.dot(w, v, acc=acc,", "tl.dot(w, v,"),
    "a slice lost": ("return low + high", "return low"),
    "slices overlap": ("slices = SLICE * tl.arange(0, SLICES)", "slices = (SLICE - 1) * tl.arange(0, SLICES)"),
    "bias by row": (
        "tl.load(bias + out, mask=out < o, other=0.0).to(tl.float32)[:, None]",
        "tl.load(bias + row, mask=row < m, other=0.0).to(tl.float32)[None, :]",
    ),
    "bias left out": ("acc += tl.load(bias", "acc = acc + 0.0 * tl.load(bias"),
    "rows off by one": ("row[None, None, :] * stride_x", "(row[None, None, :] - 1) * stride_x"),
    "rows of another block": ("tl.program_id(0) * BLOCK_M", "0 * BLOCK_M"),
    "tf32": ('input_precision="ieee"', 'input_precision="tf32"'),
    "outputs unwritten": (
        "stride_y + out[:, None], made, mask=inside)",
        "stride_y + out[:, None], made, mask=inside & (out < o - 1)[:, None])",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_caught(name: str) -> None:
    assert caught(mutated(module, *MUTANTS[name]), lambda kernel, case: bool(judge(kernel, *case).passed), CASES)
