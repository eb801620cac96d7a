"""`linear_added` against the oracle, and with `linear_rows` behind it against a norm and a product."""

import sys
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import Memory
from ssmspec_kernels.linear import linear_added, linear_rows
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.error_bounds.arithmetic import Approx, constant, sum_of_products
from ssmspec_ref.error_bounds.functions import rsqrt
from ssmspec_ref.layers.linear import Linear
from tests.kernels.device import COMPILED
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import (
    BYTES,
    DTYPES,
    Kept,
    blank,
    check_within,
    contract,
    doubles,
    draw,
    strided,
    watch,
)


@dataclass(frozen=True)
class Options:
    """One case: rows, inputs, outputs, storage types of x and of the residual, a bias."""

    m: int = 3
    k: int = 70
    o: int = 37
    io: str = "bf16"
    residual: str = "fp32"
    bias: bool = False
    eps: float = 1e-5
    scale: float = 1.0
    seed: int = 0


CASES = [
    Options(),
    Options(m=1, k=64, o=16, seed=1),
    Options(m=17, k=33, o=48, bias=True, seed=2),
    Options(m=2, k=130, o=290, residual="bf16", bias=True, seed=3),
    Options(m=5, io="fp32", bias=True, seed=4),
    Options(m=4, residual="fp16", eps=0.5, scale=1e-3, seed=5),
]
TILE = {"block_o": 32, "block_k": 64}
BEYOND = 21
"""Outputs of the layer that reads the sum."""


def drawn(o: Options) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(o.seed)
    made = {
        "x": strided(draw(rng, o.m, o.k, forms=(o.io,), scale=o.scale), o.io),
        "W": strided(draw(rng, o.o, o.k, forms=(o.io,), scale=o.k**-0.5), o.io, gap=10),
        "bias": torch.from_numpy(draw(rng, o.o, forms=(o.io,), scale=o.scale)).to(DTYPES[o.io]),
        "residual": strided(draw(rng, o.m, o.o, forms=(o.residual,), scale=o.scale), o.residual, gap=4),
        "weight": torch.from_numpy(draw(rng, o.o)).float(),
        "out": blank(o.io, o.m, o.o),
        "sums": blank("fp32", o.m, -(-o.o // 16)),
    }
    return made if o.bias else {name: tensor for name, tensor in made.items() if name != "bias"}


def exactly(x: torch.Tensor) -> Approx:
    """A tensor as it is; what follows is computed in fp32 and stored where it is said."""
    return eb.exact(doubles(x), contract("fp32", "fp32"))


def product(x: Approx, W: torch.Tensor, bias: torch.Tensor | None) -> Approx:
    return eb.linear(x, Linear(doubles(W), None if bias is None else doubles(bias)))


def check(modules: tuple[ModuleType, ModuleType], o: Options) -> None:
    """One call judged in full, then the layer behind it."""
    added, rows = modules
    made = drawn(o)
    before, kept = made["residual"].clone(), Kept(**made)
    alone = rows.linear_rows(made["x"], made["W"], made.get("bias"), **TILE).float()
    with watch(**made) as seen:
        v, squares = added.linear_added(**made, **TILE)
    assert v is made["out"]
    assert squares is made["sums"]
    kept.check(out=slice(None), sums=slice(None), residual=slice(None))
    io, residual = BYTES[o.io], BYTES[o.residual]
    expected = added.traffic_bytes(o.m, o.k, o.o, io=io, residual=residual, bias=o.bias)
    check_traffic(seen, expected + made["weight"].nbytes)
    y = product(exactly(made["x"]), made["W"], made.get("bias")).store(o.io)  # type: ignore[arg-type]
    check_within(doubles(made["residual"]), exactly(before) + y, o.residual)
    assert torch.equal(made["residual"], (before.float() + alone).to(before.dtype)), (
        "the sum is not that of the rounded product"
    )
    r = made["residual"].float()
    assert torch.equal(v, (made["weight"] * r).to(v.dtype)), "v is not the weighted residual, as it was kept"
    padded = torch.nn.functional.pad(r, (0, -o.o % 16)).view(o.m, -1, 16)
    check_within(doubles(squares), sum_of_products(("...i, ...i -> ...", exactly(padded), exactly(padded))))
    behind(rows, o, v, squares, made["weight"], r)


def check_traffic(seen: Memory, expected: int) -> None:
    """The bytes of the closed form, no stray access, and what belongs to one output asked for once."""
    if COMPILED:
        return
    assert seen.outside == seen.races == []
    assert seen.distinct_bytes() == expected
    for (kind, name), access in seen.accesses.items():
        assert name not in ("residual", "out", "sums") or kind == "load" or access.requested == access.distinct


def behind(
    rows: ModuleType, o: Options, v: torch.Tensor, squares: torch.Tensor, weight: torch.Tensor, r: torch.Tensor
) -> None:
    """The product with the norm: rms(r) W^T as the oracle takes it from the residual that was kept."""
    rng = np.random.default_rng(o.seed + 1)
    W = strided(draw(rng, BEYOND, o.o, forms=(o.io,), scale=o.o**-0.5), o.io)
    bias = torch.from_numpy(draw(rng, BEYOND, forms=(o.io,))).to(DTYPES[o.io]) if o.bias else None
    out = blank(o.io, o.m, BEYOND)
    given = {"x": v, "W": W, "out": out, "squares": squares} | ({} if bias is None else {"bias": bias})
    kept = Kept(**given)
    with watch(**given) as seen:
        rows.linear_rows(v, W, bias, squares=squares, eps=o.eps, out=out, block_o=16, block_k=64)
    kept.check(out=slice(None))
    bytes_ = rows.traffic_bytes(o.m, o.o, BEYOND, io=BYTES[o.io], bias=o.bias, parts=squares.shape[1])
    check_traffic(seen, bytes_)
    given_v = (exactly(weight) * exactly(r)).store(o.io)  # type: ignore[arg-type]
    sum_of_squares = sum_of_products(("...i, ...i -> ...", exactly(r), exactly(r)))
    mean = sum_of_squares * constant(1 / o.o, given_v.contract)
    found = product(given_v, W, None) * rsqrt(mean + o.eps)[..., None]
    found = found if bias is None else found + exactly(bias)
    check_within(doubles(out), found, o.io)


@pytest.mark.parametrize("o", CASES, ids=str)
def test_the_sum_its_first_half_of_a_norm_and_the_layer_behind_equal_the_oracle(o: Options) -> None:
    check((linear_added, linear_rows), o)


@pytest.mark.parametrize("m", [1, 2, 7, 16, 17, 40, 128])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(m: int) -> None:
    """In the tiles that the launcher chooses by the number of rows: of outputs, and of rows."""
    check_rows((linear_added, linear_rows), m)


def check_rows(modules: tuple[ModuleType, ModuleType], m: int) -> None:
    added, rows = modules
    rng = np.random.default_rng(7)
    x, W, r = (torch.from_numpy(rng.standard_normal(s)) for s in ((m, 130), (83, 130), (m, 83)))
    x, W, r, weight = x.bfloat16(), W.bfloat16(), r.float(), torch.from_numpy(rng.standard_normal(83)).float()
    behind = torch.from_numpy(rng.standard_normal((35, 83))).bfloat16()

    def both(x: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept = r.clone()
        v, squares = added.linear_added(x, W, residual=kept, weight=weight, block_o=16 if len(x) <= 16 else 32, block_k=64)
        return kept, v, squares, rows.linear_rows(v, behind, squares=squares, eps=1e-5, block_o=16, block_k=64)

    alone = [both(x[i : i + 1], r[i : i + 1]) for i in range(m)]
    for together, parts in zip(both(x, r), zip(*alone, strict=True), strict=True):
        assert torch.equal(together, torch.cat(parts))


def test_ones_come_through_a_norm_as_they_are() -> None:
    """r' = 1 and eps = 0: every operation is exact, whatever the number of outputs."""
    for o in (16, 33, 300):
        v, squares = linear_added.linear_added(
            torch.zeros(2, 8), torch.zeros(o, 8), residual=torch.ones(2, o), weight=torch.full((o,), 2.0), block_k=64
        )
        identity = torch.eye(o)
        y = linear_rows.linear_rows(v, identity, squares=squares, eps=0.0, block_k=64)
        assert torch.equal(y, torch.full((2, o), 2.0))


def test_eps_is_1e_6_where_none_is_given() -> None:
    x, W, squares = torch.ones(1, 4), torch.ones(3, 4), torch.full((1, 1), 1e-6)
    given = linear_rows.linear_rows(x, W, squares=squares, eps=1e-6)
    assert torch.equal(linear_rows.linear_rows(x, W, squares=squares), given)


MUTANTS = {
    "the residual before the sum is normed": ("value = kept.to(tl.float32)", "value = held"),
    "the sum unrounded": ("value = kept.to(tl.float32)", "value = held + made.to(tl.float32)"),
    "the output added unrounded": ("kept = (held + made.to(tl.float32))", "kept = (held + acc)"),
    "no sum": ("kept = (held + made.to(tl.float32))", "kept = (made.to(tl.float32))"),
    "the sum unwritten": (
        "tl.store(at_residual, kept, mask=inside)",
        "tl.store(at_residual, kept, mask=inside & (out < o - 1)[:, None])",
    ),
    "another weight": ("scale = tl.load(weight + out,", "scale = tl.load(weight + out // 2,"),
    "no weight": ("made = (scale[:, None] * value)", "made = (value)"),
    "squares of what is weighted": ("tl.reshape(value * value,", "tl.reshape(made.to(tl.float32) * value,"),
    "sums, not squares": ("tl.reshape(value * value,", "tl.reshape(value * scale[:, None],"),
    "a part lost": ("for first in tl.static_range(0, PARTS, 16)", "for first in tl.static_range(0, PARTS - 15, 16)"),
    "half of a part": (
        "parts = _halved(_halved(parts, G, 16",
        "parts = _halved(_halved(tl.reshape(parts, (G, 16, 1, M)) * (tl.arange(0, 16) < 8)[None, :, None, None], G, 16",
    ),
    "the sum, not the mean": ("_sum_of_16(square, 1, BLOCK_M) / K + eps", "_sum_of_16(square, 1, BLOCK_M) + eps"),
    "no eps": ("_sum_of_16(square, 1, BLOCK_M) / K + eps", "_sum_of_16(square, 1, BLOCK_M) / K"),
    "the factor on the bias too": ("acc += tl.load(bias + out,", "acc += acc * 0.5 + tl.load(bias + out,"),
    "the squares of another row": ("squares + row[None, :] * stride_squares", "squares + 0 * row[None, :] * stride_squares"),
    "squares of another tile": (
        "tl.program_id(1).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)",
        "tl.program_id(1).to(tl.int64) + tl.arange(0, GROUPS)",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_caught(name: str) -> None:
    added = mutated(linear_added, *MUTANTS[name])
    rows = sys.modules[f"{added.__package__}.linear_rows"]
    assert caught(added, lambda kernel, o: check((kernel, rows), o), CASES)
