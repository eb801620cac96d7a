"""The gated norm's kernel, over groups and over heads, against the oracle, its bytes, and planted faults."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_kernels.linear import gated_norm
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.layers.norm import GatedNorm
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import BYTES, Kept, blank, check_bytes, check_within, contract, doubles, draw, strided, watch


@dataclass(frozen=True)
class Options:
    """One case: sizes, storage types, what is on. `heads`: c / heads channels each, one weight for all of them."""

    b: int = 2
    t: int = 3
    c: int = 30
    groups: int = 1
    heads: int = 0
    io: str = "fp32"
    gate: str = "silu"
    norm_first: bool = False
    eps: float = 1e-6
    scale: float = 1.0
    seed: int = 0


CASES = [
    Options(),
    Options(groups=3, io="bf16", seed=1),
    Options(groups=5, norm_first=True, io="fp16", seed=2),
    Options(heads=6, norm_first=True, seed=3),
    Options(heads=3, norm_first=True, gate="sigmoid", io="bf16", seed=4),
    Options(c=7, gate="sigmoid", eps=0.1, seed=5),
    Options(c=64, heads=4, eps=1e-2, io="fp16", seed=6),
    Options(b=1, t=1, c=300, groups=2, scale=1e-3, seed=7),
]


def drawn(o: Options) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(o.seed)
    shape = (o.b, o.t, o.heads, o.c // o.heads) if o.heads else (o.b, o.t, o.c)
    return {
        "y": strided(draw(rng, *shape, forms=(o.io,), scale=o.scale), o.io),
        "z": strided(draw(rng, *shape, forms=(o.io,), scale=3.0), o.io, gap=4),
        "weight": torch.from_numpy(draw(rng, shape[-1])).float(),
        "out": blank(o.io, *shape),
    }


def check(module: ModuleType, o: Options) -> None:
    """One call judged in full: outputs, bystanders, bytes."""
    made = drawn(o)
    kept = Kept(**made)
    settings: dict[str, Any] = {"groups": o.groups, "eps": o.eps, "norm_first": o.norm_first, "gate": o.gate}
    with watch(**made) as seen:
        got = module.gated_norm(**made, **settings, block_h=2)
    assert got is made["out"]
    kept.check(out=slice(None))
    given = contract("fp32", "fp32")  # io as fp32, so that one rounding is charged, at the store
    y, z = (eb.exact(doubles(made[name]), given) for name in ("y", "z"))
    pair = eb.gated(y, z, GatedNorm(doubles(made["weight"]), **settings))
    check_within(doubles(made["out"]), pair, o.io)
    io = BYTES[o.io]
    check_bytes(seen, module.traffic_bytes(o.b * o.t, o.c, io=io, z=io, out=io), ("y", "z", "out"), ("weight",))


@pytest.mark.parametrize("o", CASES, ids=str)
def test_a_gated_norm_equals_the_oracle_and_touches_nothing_else(o: Options) -> None:
    check(gated_norm, o)


@pytest.mark.interpreter  # compiled, the two have their sums in other orders
def test_groups_with_one_weight_are_heads_bit_for_bit() -> None:
    made = drawn(Options(heads=5, seed=8))
    heads = gated_norm.gated_norm(made["y"], made["z"], made["weight"])
    y, z = (made[name].reshape(2, 3, 30) for name in ("y", "z"))
    assert torch.equal(gated_norm.gated_norm(y, z, made["weight"].repeat(5), groups=5).view_as(heads), heads)


def test_an_open_sigmoid_gate_is_no_gate() -> None:
    """sigmoid(100) is 1 in fp32, and rms(1) = weight where eps is 0."""
    weight = torch.arange(-4.0, 4.0)
    y, z = torch.ones(1, 2, 8), torch.full((1, 2, 8), 100.0)
    for norm_first in (False, True):
        got = gated_norm.gated_norm(y, z, weight, eps=0.0, gate="sigmoid", norm_first=norm_first)
        assert torch.equal(got, weight.expand(1, 2, 8))


def test_the_gate_may_be_stored_in_another_type() -> None:
    made = drawn(Options(io="fp32", seed=9))
    z = made["z"].bfloat16()
    assert torch.equal(
        gated_norm.gated_norm(made["y"], z, made["weight"]), gated_norm.gated_norm(made["y"], z.float(), made["weight"])
    )


MUTANTS = [
    ("_gated_norm_kernel", "if not NORM_FIRST:", "if NORM_FIRST:"),
    ("_gated_norm_kernel", "    if NORM_FIRST:\n        normed *= act\n", ""),
    ("_gated_norm_kernel", "silu(act) if SILU", "silu(act) if not SILU"),
    ("_gated_norm_kernel", "inside = (h < H) & (v < V)", "inside = (h <= H) & (v < V)"),
    ("_gated_norm_kernel", "axis=1) / V", "axis=1) / BLOCK_V"),
    ("_gated_norm_kernel", "axis=1) / V", "axis=1) / (V * H)"),
    ("_gated_norm_kernel", "mean + eps", "mean - eps"),
    ("_gated_norm_kernel", "h * stride_weight_h", "(h + 1) * stride_weight_h"),
    ("_gated_norm_kernel", "h * stride_z_h", "h * stride_y_h"),
    ("_gated_norm_kernel", "t * stride_out_t", "t * stride_y_t"),
    ("_gated_norm_kernel", "normed.to(out.dtype.element_ty)", "normed.to(tl.bfloat16).to(out.dtype.element_ty)"),
    ("sigmoid", "return 1.0 / (1.0 + tl.exp(-x))", "return 1.0 / (1.0 + tl.exp(x))"),
]


@pytest.mark.parametrize(("at", "old", "new"), MUTANTS)
def test_planted_faults_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(gated_norm, old, new, at=at), check, CASES)
