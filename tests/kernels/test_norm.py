"""The norm's kernel, with and without the residual, against the oracle, its bytes, and planted faults."""

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest
import torch

from ssmspec_kernels.linear import norm
from ssmspec_ref import error_bounds as eb
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import (
    BYTES,
    DTYPES,
    Kept,
    blank,
    check_bytes,
    check_within,
    contract,
    doubles,
    draw,
    far,
    strided,
    watch,
)


@dataclass(frozen=True)
class Options:
    """One case: sizes, storage types, the residual's (None: there is none). `b` = 0: tokens without rows."""

    b: int = 3
    t: int = 2
    u: int = 37
    io: str = "fp32"
    residual: str | None = "fp32"
    eps: float = 1e-6
    scale: float = 1.0
    seed: int = 0


CASES = [
    Options(),
    Options(u=64, io="bf16", residual="fp32", seed=1),
    Options(u=5, io="bf16", residual="bf16", eps=1e-2, seed=2),
    Options(b=0, t=5, u=33, io="fp16", residual="fp16", seed=3),
    Options(u=100, residual=None, seed=4),
    Options(b=0, t=3, u=1, io="bf16", residual=None, eps=0.5, seed=5),
    Options(t=3, u=48, io="bf16", residual=None, seed=8),
    Options(b=1, t=4, u=257, io="fp16", residual="fp32", scale=1e-3, seed=6),
]


def drawn(o: Options) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(o.seed)
    shape = (o.b, o.t, o.u) if o.b else (o.t, o.u)
    form = o.residual or "fp32"
    tensors = {
        "x": strided(draw(rng, *shape, forms=(o.io,), scale=o.scale), o.io),
        "weight": torch.from_numpy(draw(rng, o.u)).float(),
        "residual": strided(draw(rng, *shape, forms=(form,), scale=o.scale), form, gap=4),
        "out": blank(o.io, *shape),
    }
    return tensors if o.residual else {name: t for name, t in tensors.items() if name != "residual"}


def check(module: ModuleType, o: Options) -> None:
    """One call judged in full: the sum bit for bit, the norm within its bound, bystanders, bytes."""
    made = drawn(o)
    value = made["x"].float()
    if o.residual:
        value = (value + made["residual"].float()).to(DTYPES[o.residual])
    kept = Kept(**made)
    with watch(**made) as seen:
        got = module.norm(**made, eps=o.eps)
    assert got is made["out"]
    kept.check(out=slice(None), **({"residual": slice(None)} if o.residual else {}))
    if o.residual:
        assert torch.equal(made["residual"], value)
    given = contract("fp32", "fp32")  # io as fp32, so that one rounding is charged, at the store
    pair = eb.rms(eb.exact(doubles(value), given), doubles(made["weight"]), o.eps)
    check_within(doubles(made["out"]), pair, o.io)
    tokens, residual = max(o.b, 1) * o.t, BYTES[o.residual] if o.residual else 0
    check_bytes(
        seen, module.traffic_bytes(tokens, o.u, io=BYTES[o.io], residual=residual), ("x", "residual", "out"), ("weight",)
    )


@pytest.mark.parametrize("o", CASES, ids=str)
def test_a_norm_equals_the_oracle_and_touches_nothing_else(o: Options) -> None:
    check(norm, o)


def test_powers_of_two_scale_through_exactly() -> None:
    """rms(4 x) = rms(x) bit for bit where eps is 0."""
    made = drawn(Options(residual=None, seed=7))
    y = norm.norm(made["x"], made["weight"], eps=0.0)
    assert torch.equal(norm.norm(4 * made["x"], made["weight"], eps=0.0), y)


def test_ones_are_their_own_norm() -> None:
    """rms(1) = weight where eps is 0: every operation is exact."""
    weight = torch.arange(-4.0, 4.0)
    assert torch.equal(norm.norm(torch.ones(2, 8), weight, eps=0.0), weight.expand(2, 8))


def test_eps_is_1e_6_where_none_is_given() -> None:
    x, weight = 1e-3 * torch.arange(1.0, 6.0)[None, :], torch.ones(5)
    assert torch.equal(norm.norm(x, weight), norm.norm(x, weight, eps=1e-6))


def test_channels_beyond_2_to_the_31_elements_are_reached() -> None:
    x, weight = torch.arange(1.0, 6.0)[None, :].bfloat16(), torch.ones(5)
    assert torch.equal(norm.norm(far(x, 1), weight), norm.norm(x, weight))


MUTANTS = [
    ("_norm_kernel", "b, t = row // tokens, row % tokens", "b, t = row % tokens, row // tokens"),
    ("_norm_kernel", "inside = u < U", "inside = u < U - 1"),
    ("_norm_kernel", "        value = kept.to(tl.float32)\n", ""),
    ("_norm_kernel", "        tl.store(at, kept, mask=inside)\n", ""),
    ("_norm_kernel", "axis=0) / U", "axis=0) / BLOCK_U"),
    ("_norm_kernel", "tl.rsqrt(mean + eps)", "tl.rsqrt(mean)"),
    ("_norm_kernel", "tl.rsqrt(mean + eps)", "1.0 / (tl.sqrt(mean) + eps)"),
    ("_norm_kernel", "scale * (value", "(1.0 + scale) * (value"),
    ("_norm_kernel", "t * stride_residual_t", "t * stride_x_t"),
    ("_norm_kernel", "stride_y_t + u * stride_y_u", "stride_y_t + u * stride_y_u + 1"),
    ("_norm_kernel", "normed.to(y.dtype.element_ty)", "normed.to(tl.bfloat16).to(y.dtype.element_ty)"),
]


@pytest.mark.parametrize(("at", "old", "new"), MUTANTS)
def test_planted_faults_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(norm, old, new, at=at), check, CASES)
