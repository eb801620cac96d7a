"""Queries and keys turned to their positions: the bits of products and sums rounded one by one, the oracle, bytes."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ssmspec_kernels.attention import rotary as kernel
from ssmspec_ref.layers import rotary as oracle
from tests.kernels.device import COMPILED
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import BYTES, Kept, blank, check_bytes, doubles, draw, far, strided, watch


@dataclass(frozen=True)
class Options:
    """One case: sizes and storage; `f` frequencies of `e` channels."""

    b: int = 2
    t: int = 3
    h: int = 5
    g: int = 2
    e: int = 12
    f: int = 6
    io: str = "fp32"
    seed: int = 0


CASES = [
    Options(),
    Options(f=3, io="bf16", seed=1),
    Options(b=1, t=4, h=3, g=3, e=9, f=4, io="fp16", seed=2),
    Options(t=1, h=9, g=1, e=64, f=32, io="bf16", seed=3),
]


class Case:
    """Tensors of one call; positions far from the start, so that angles are large."""

    def __init__(self, o: Options) -> None:
        rng = np.random.default_rng(o.seed)
        self.o, self.positions = o, rng.integers(0, 9000, (o.b, o.t))
        self.frequencies = oracle.frequencies(2 * o.f)
        angle = self.positions[..., None] * self.frequencies
        self.q, self.k = (strided(draw(rng, o.b, o.t, heads, o.e, forms=(o.io,)), o.io) for heads in (o.h, o.g))
        self.cos, self.sin = strided(np.cos(angle), "fp32"), strided(np.sin(angle), "fp32", gap=4)
        self.out = blank(o.io, o.b, o.t, o.h, o.e), blank(o.io, o.b, o.t, o.g, o.e)

    @property
    def tensors(self) -> dict[str, Tensor]:
        named = {name: getattr(self, name) for name in ("q", "k", "cos", "sin")}
        return named | {"out_q": self.out[0], "out_k": self.out[1]}

    def call(self, module: ModuleType, **changes: Any) -> tuple[Tensor, Tensor]:
        given = {name: getattr(self, name) for name in ("q", "k", "cos", "sin", "out")}
        found: tuple[Tensor, Tensor] = module.rotary(**given | changes)
        return found

    def turned(self, x: Tensor) -> Tensor:
        """By PyTorch, whose products and sums round one by one."""
        first, second, rest = torch.split(x.float(), [self.o.f, self.o.f, self.o.e - 2 * self.o.f], dim=-1)
        cos, sin = self.cos[:, :, None], self.sin[:, :, None]
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1).to(x.dtype)


def check(module: ModuleType, o: Options, **tiles: int) -> None:
    """One call judged in full: bits, bystanders, bytes."""
    case = Case(o)
    kept = Kept(**case.tensors)
    with watch(**case.tensors) as seen:
        case.call(module, **tiles)
    kept.check(out_q=slice(None), out_k=slice(None))
    for x, y in ((case.q, case.out[0]), (case.k, case.out[1])):
        assert torch.equal(y, case.turned(x))
    turns = 2 * 4 * o.b * o.t * o.f  # every program of a token asks for its cos and sin
    moved = module.traffic_bytes(o.b * o.t, o.h, o.g, o.e, o.f, io=BYTES[o.io]) - turns
    check_bytes(seen, moved, ("q", "k", "out_q", "out_k"), ("cos", "sin"))
    if not COMPILED:
        assert sum(seen.loaded(name).distinct for name in ("cos", "sin")) == turns


@pytest.mark.parametrize("o", CASES, ids=str)
def test_heads_are_turned_bit_for_bit_and_nothing_else_is_touched(o: Options) -> None:
    check(kernel, o)


@pytest.mark.parametrize("block_h", [1, 2, 16])
def test_every_tile_gives_the_same_bits(block_h: int) -> None:
    check(kernel, CASES[1], block_h=block_h, num_warps=1)


@pytest.mark.parametrize("o", [CASES[0], Options(t=5, e=16, f=5, seed=4)], ids=str)
def test_the_turn_is_the_oracles(o: Options) -> None:
    """cos and sin come rounded, products and their sum are: 4 roundings of 2^-24 of what is added, second orders left out."""
    case = Case(o)
    case.call(kernel)
    for x, y in ((case.q, case.out[0]), (case.k, case.out[1])):
        wanted = oracle.rotate(doubles(x), case.positions, case.frequencies)
        first, second = np.abs(doubles(x))[..., : o.f], np.abs(doubles(x))[..., o.f : 2 * o.f]
        bound = np.zeros_like(wanted)
        bound[..., : o.f] = bound[..., o.f : 2 * o.f] = 4.1 * 2.0**-24 * (first + second)
        assert (np.abs(doubles(y) - wanted) <= bound).all()


def test_outputs_of_its_own_are_dense() -> None:
    case = Case(CASES[1])
    q, k = case.call(kernel, out=None)
    case.call(kernel)
    assert q.is_contiguous()
    assert k.is_contiguous()
    assert torch.equal(q, case.out[0])
    assert torch.equal(k, case.out[1])


def test_tokens_lie_as_far_apart_as_they_like() -> None:
    case = Case(Options(b=3, t=1, h=2, g=1, e=4, f=2))
    case.call(kernel)
    wanted = [y.clone() for y in case.out]
    case.q = far(case.q, 0)
    case.call(kernel)
    assert torch.equal(case.out[0], wanted[0])


FAULTS = [
    ("first * cos - second * sin", "first * cos + second * sin"),
    ("second * cos + first * sin", "second * cos - first * sin"),
    ("if E > 2 * F:", "if E < 2 * F:"),
    ("r = 2 * F + tl.arange", "r = F + tl.arange"),
    ("beside = (h < HEADS) & (r < E)", "beside = (h < HEADS) & (r < E - 1)"),
    ("inside = (h < HEADS) & (i < F)", "inside = i < F"),
    ("if part < parts:", "if part <= parts:"),
    ("to_k, part - parts,", "to_k, part,"),
    ("part * BLOCK_H + tl.arange", "tl.arange"),
    ("at_k, to_k = k + b * stride_k_b + t * stride_k_t", "at_k, to_k = k + b * stride_k_b"),
    ("b, t = row // tokens, row % tokens", "b, t = row % tokens, row // tokens"),
    ("sin + b * stride_sin_b", "sin + b * stride_cos_b"),
]


@pytest.mark.parametrize(("old", "new"), FAULTS)
def test_planted_faults_are_caught(old: str, new: str) -> None:
    checks: list[Any] = [lambda m, o=o: check(m, o) for o in CASES]
    checks.append(lambda m: check(m, CASES[1], block_h=2))
    assert caught(mutated(kernel, old, new), lambda m, judged: judged(m), checks)
