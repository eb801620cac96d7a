"""Norms and products of rows: what every launcher is held to, and what is theirs alone."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_kernels.linear import gated_norm, linear_rows, norm
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.norm import GatedNorm
from tests.kernels import plot
from tests.kernels.laws import (  # noqa: F401
    Subject,
    moved,
    pytest_generate_tests,
    test_an_axis_beyond_2_to_the_31_elements_is_reached,
    test_bytes_equal_the_formula_and_the_state_is_read_once,
    test_planted_fault_is_caught,
    test_results_lie_within_the_bound_and_nothing_else_is_written,
)
from tests.kernels.mutants import mutated
from tests.kernels.plot import Call
from tests.kernels.tensors import DTYPES, contract, doubles, draw, integers

FP32 = contract("fp32", "fp32")
"""Activations as fp32, so that one rounding is charged, at the store."""

# --- the norm, with the residual's sum in front ---


@dataclass(frozen=True)
class Norms(plot.Options):
    """The residual has a type of its own, or there is none. `b` = 0: tokens without rows."""

    t: int = 2
    u: int = 37
    residual: str | None = "fp32"
    eps: float = 1e-6
    scale: float = 1.0


def norm_of(o: Norms) -> Call:
    rng, shape = np.random.default_rng(o.seed), (o.b, o.t, o.u) if o.b else (o.t, o.u)
    found: dict[str, Any] = {"x": draw(rng, *shape, scale=o.scale), "weight": draw(rng, o.u)}
    if o.residual:
        found["residual"] = torch.from_numpy(draw(rng, *shape, scale=o.scale)).to(DTYPES[o.residual])
    return plot.drawn("norm", o, found, eps=o.eps)


def of_norm(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    """The sum is exact, the norm that of the sum as it was stored."""
    value, residual = call["x"].float(), call.given.get("residual")
    if residual is not None:
        value = (value + residual.float()).to(residual.dtype)
        yield "residual", slice(None), eb.exact(doubles(value), FP32)
    pair = eb.rms(eb.exact(doubles(value), FP32), doubles(call["weight"]), call["eps"])
    yield "out", slice(None), pair.store(call.options.io)  # type: ignore[arg-type]


def norm_bytes(module: Any, call: Call) -> int:
    o: Any = call.options
    residual = call["residual"].element_size() if o.residual else 0
    return moved(module.traffic_bytes, call, tokens=max(o.b, 1) * o.t, residual=residual)


NORMS = [
    Norms(),
    Norms(u=64, io="bf16", residual="fp32", seed=1),
    Norms(u=5, io="bf16", residual="bf16", eps=1e-2, seed=2),
    Norms(b=0, t=5, u=33, io="fp16", residual="fp16", seed=3),
    Norms(u=100, residual=None, seed=4),
    Norms(b=0, t=3, u=1, io="bf16", residual=None, eps=0.5, seed=5),
    Norms(t=3, u=48, io="bf16", residual=None, seed=8),
    Norms(b=1, t=4, u=257, io="fp16", residual="fp32", scale=1e-3, seed=6),
]

# --- the gated norm ---


@dataclass(frozen=True)
class Gated(plot.Options):
    """`heads`: c / heads channels each, one weight for all of them."""

    b: int = 2
    c: int = 30
    groups: int = 1
    heads: int = 0
    gate: str = "silu"
    norm_first: bool = False
    eps: float = 1e-6
    scale: float = 1.0


def gated_of(o: Gated) -> Call:
    rng, shape = np.random.default_rng(o.seed), (o.b, o.t, o.heads, o.c // o.heads) if o.heads else (o.b, o.t, o.c)
    found = {"y": draw(rng, *shape, scale=o.scale), "z": draw(rng, *shape, scale=3.0), "weight": draw(rng, shape[-1])}
    settings = {name: getattr(o, name) for name in ("groups", "eps", "norm_first", "gate")}
    return plot.drawn("gated_norm", o, found, **settings, block_h=2)


def of_gated(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    y, z = (eb.exact(doubles(call[name]), FP32) for name in ("y", "z"))
    layer = GatedNorm(doubles(call["weight"]), **{name: call[name] for name in ("groups", "eps", "norm_first", "gate")})
    yield "out", slice(None), eb.gated(y, z, layer).store(call.options.io)  # type: ignore[arg-type]


def gated_bytes(module: Any, call: Call) -> int:
    o: Any = call.options
    io = call["y"].element_size()
    return moved(module.traffic_bytes, call, tokens=o.b * o.t, c=o.c, z=io, out=io)


GATED = [
    Gated(),
    Gated(groups=3, io="bf16", seed=1),
    Gated(groups=5, norm_first=True, io="fp16", seed=2),
    Gated(heads=6, norm_first=True, seed=3),
    Gated(heads=3, norm_first=True, gate="sigmoid", io="bf16", seed=4),
    Gated(c=7, gate="sigmoid", eps=0.1, seed=5),
    Gated(c=64, heads=4, eps=1e-2, io="fp16", seed=6),
    Gated(b=1, t=1, c=300, groups=2, scale=1e-3, seed=7),
]

# --- products of rows with a matrix ---


@dataclass(frozen=True)
class Rows(plot.Options):
    m: int = 1
    k: int = 70
    o: int = 37
    bias: bool = True


def rows_of(o: Rows) -> Call:
    """Small integers, whose products are exact, are stored in fp32."""
    rng, number = np.random.default_rng(o.seed), integers if o.exact else draw
    found = {"x": number(rng, o.m, o.k), "W": number(rng, o.o, o.k), "bias": number(rng, o.o) if o.bias else None}
    call = plot.drawn("linear_rows", o, found, block_o=16, block_k=64)
    if o.exact:
        call["out"] = torch.empty(call["out"].shape)
    return call


def of_rows(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    o: Any = call.options
    layer = Linear(doubles(call["W"]), doubles(call["bias"]) if "bias" in call.given else None)
    y = eb.linear(eb.exact(doubles(call["x"]), NumericContract(io=o.io)), layer)
    yield "out", slice(None), y if o.exact else y.store(o.io)


SUBJECTS = [
    Subject(
        "norm",
        norm,
        norm_of,
        of_norm,
        cover=NORMS,
        moves=NORMS,
        once=("x", "residual", "out"),
        formula=norm_bytes,
        far=[(Norms(u=5, io="bf16", residual=None), letter) for letter in "bt"],
    ),
    Subject(
        "gated_norm",
        gated_norm,
        gated_of,
        of_gated,
        cover=GATED,
        moves=GATED,
        once=("y", "z", "out"),
        formula=gated_bytes,
    ),
    Subject(
        "linear_rows",
        linear_rows,
        rows_of,
        of_rows,
        cover=[
            Rows(io="bf16"),
            Rows(m=3, k=64, o=16, bias=False),
            Rows(m=17, k=33, o=5, io="fp16"),
            Rows(m=2, k=300, o=50, io="bf16", bias=False),
            Rows(m=40, k=64, o=5),
            Rows(m=5, k=90, o=21, io="bf16", bias=False, exact=True),
        ],
        moves=[
            Rows(k=64, o=32, io="bf16", bias=False),
            Rows(m=5, io="bf16"),
            Rows(m=17, k=33, o=16, io="bf16"),
        ],
        once=("W",),
        formula=lambda module, call: moved(module.traffic_bytes, call, bias="bias" in call.given),
    ),
]


def test_powers_of_two_scale_through_exactly() -> None:
    """rms(4 x) = rms(x) bit for bit where eps is 0."""
    call = norm_of(Norms(residual=None, eps=0.0, seed=7))
    y = call.run(norm).clone()
    assert torch.equal(call.run(norm, x=4 * call["x"]), y)


def test_ones_are_their_own_norm() -> None:
    """rms(1) = weight where eps is 0: every operation is exact."""
    weight = torch.arange(-4.0, 4.0)
    assert torch.equal(norm.norm(torch.ones(2, 8), weight, eps=0.0), weight.expand(2, 8))


def test_eps_is_1e_6_where_none_is_given() -> None:
    x, weight = 1e-3 * torch.arange(1.0, 6.0)[None, :], torch.ones(5)
    assert torch.equal(norm.norm(x, weight), norm.norm(x, weight, eps=1e-6))


@pytest.mark.interpreter  # compiled, the two have their sums in other orders
def test_groups_with_one_weight_are_heads_bit_for_bit() -> None:
    call = gated_of(Gated(heads=5, seed=8))
    heads, weight = gated_norm.gated_norm(call["y"], call["z"], call["weight"]), call["weight"].repeat(5)
    y, z = (call[name].reshape(2, 3, 30) for name in ("y", "z"))
    assert torch.equal(gated_norm.gated_norm(y, z, weight, groups=5).view_as(heads), heads)


def test_an_open_sigmoid_gate_is_no_gate() -> None:
    """sigmoid(100) is 1 in fp32, and rms(1) = weight where eps is 0."""
    weight = torch.arange(-4.0, 4.0)
    y, z = torch.ones(1, 2, 8), torch.full((1, 2, 8), 100.0)
    for norm_first in (False, True):
        got = gated_norm.gated_norm(y, z, weight, eps=0.0, gate="sigmoid", norm_first=norm_first)
        assert torch.equal(got, weight.expand(1, 2, 8))


def test_the_gate_may_be_stored_in_another_type() -> None:
    call = gated_of(Gated(seed=9))
    z = call["z"].bfloat16()
    y = call.run(gated_norm, z=z).clone()
    assert torch.equal(call.run(gated_norm, z=z.float()), y)


@pytest.mark.parametrize("m", [1, 2, 7, 16, 17, 40, 128])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(m: int) -> None:
    call = rows_of(Rows(m=m, k=130, o=35, io="bf16"))
    alone = torch.cat([call.run(linear_rows, x=row[None], out=None) for row in call["x"]])
    assert torch.equal(call.run(linear_rows), alone)


def check_order(kernel: ModuleType) -> None:
    """The inputs of a block and their slices, which are the order of a sum, are one for all rows, early or not."""
    for o, size in itertools.product((37, 2560, 4096, 8191, 8192, 10576, 50288), (2, 4)):
        tiles = {kernel._tile(o, m, size, early) for m in range(1, 129) for early in (False, True)}
        assert len({(inputs, slices) for _, inputs, _, slices in tiles}) == 1, f"{o} outputs"


def test_a_row_is_summed_in_one_order_whatever_its_batch_and_early_or_not() -> None:
    check_order(linear_rows)


@pytest.mark.parametrize("change", ["256 if early else 512", "512 if m <= 16 else 256"])
def test_a_planted_order_of_its_own_is_caught(change: str) -> None:
    with pytest.raises(AssertionError):
        check_order(mutated(linear_rows, 'return outputs, row["narrow_block_k"],', f"return outputs, {change},"))


def test_a_row_has_the_same_bits_in_the_tile_of_an_early_start() -> None:
    call = rows_of(Rows(m=3, k=130, o=70, io="bf16"))
    made = [call.run(linear_rows, out=None, block_o=o, num_stages=s) for o, s in ((16, 3), (32, 4), (64, 3))]
    assert all(torch.equal(y, made[0]) for y in made[1:])


FAULTS = {
    "norm": [
        ("b, t = row // tokens, row % tokens", "b, t = row % tokens, row // tokens", "_norm_kernel"),
        ("inside = u < U", "inside = u < U - 1", "_norm_kernel"),
        ("        value = kept.to(tl.float32)\n", "", "_norm_kernel"),
        ("        tl.store(at, kept, mask=inside)\n", "", "_norm_kernel"),
        ("axis=0) / U", "axis=0) / BLOCK_U", "_norm_kernel"),
        ("tl.rsqrt(mean + eps)", "tl.rsqrt(mean)", "_norm_kernel"),
        ("tl.rsqrt(mean + eps)", "1.0 / (tl.sqrt(mean) + eps)", "_norm_kernel"),
        ("scale * (value", "(1.0 + scale) * (value", "_norm_kernel"),
        ("t * stride_residual_t", "t * stride_x_t", "_norm_kernel"),
        ("stride_y_t + u * stride_y_u", "stride_y_t + u * stride_y_u + 1", "_norm_kernel"),
        ("normed.to(y.dtype.element_ty)", "normed.to(tl.bfloat16).to(y.dtype.element_ty)", "_norm_kernel"),
    ],
    "gated_norm": [
        ("if not NORM_FIRST:", "if NORM_FIRST:", "_gated_norm_kernel"),
        ("    if NORM_FIRST:\n        normed *= act\n", "", "_gated_norm_kernel"),
        ("silu(act) if SILU", "silu(act) if not SILU", "_gated_norm_kernel"),
        ("inside = (h < H) & (v < V)", "inside = (h <= H) & (v < V)", "_gated_norm_kernel"),
        ("axis=1) / V", "axis=1) / BLOCK_V", "_gated_norm_kernel"),
        ("axis=1) / V", "axis=1) / (V * H)", "_gated_norm_kernel"),
        ("mean + eps", "mean - eps", "_gated_norm_kernel"),
        ("h * stride_weight_h", "(h + 1) * stride_weight_h", "_gated_norm_kernel"),
        ("h * stride_z_h", "h * stride_y_h", "_gated_norm_kernel"),
        ("t * stride_out_t", "t * stride_y_t", "_gated_norm_kernel"),
        ("normed.to(out.dtype.element_ty)", "normed.to(tl.bfloat16).to(out.dtype.element_ty)", "_gated_norm_kernel"),
        ("return 1.0 / (1.0 + tl.exp(-x))", "return 1.0 / (1.0 + tl.exp(x))", "sigmoid"),
    ],
    "linear_rows": [
        ("else inside & (k0 + k < K)", "else inside"),
        ("for k0 in tl.range(0, K, BLOCK_K", "for k0 in tl.range(0, K - BLOCK_K + 1, BLOCK_K"),
        ("tl.dot(w, v, acc=acc,", "tl.dot(w, v,"),
        ("return low + high", "return low"),
        ("slices = SLICE * tl.arange(0, SLICES)", "slices = (SLICE - 1) * tl.arange(0, SLICES)"),
        ("tl.load(bias + out, mask=out < o, other=0.0).to(tl.float32)[:, None]",
         "tl.load(bias + row, mask=row < m, other=0.0).to(tl.float32)[None, :]"),
        ("acc += tl.load(bias", "acc = acc + 0.0 * tl.load(bias"),
        ("row[None, None, :] * stride_x", "(row[None, None, :] - 1) * stride_x"),
        ("tl.program_id(0) * BLOCK_M", "0 * BLOCK_M"),
        ("input_precision=\"ieee\"", "input_precision=\"tf32\""),
        ("stride_y + out[:, None], made, mask=inside)",
         "stride_y + out[:, None], made, mask=inside & (out < o - 1)[:, None])"),
    ],
}  # fmt: skip
