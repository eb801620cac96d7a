"""The SSD scan with the first half of the gated norm: against the oracle, in its bytes, and with the projection behind it."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.linear import linear_rows
from ssmspec_kernels.ssd import ssd_gated
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.error_bounds.arithmetic import constant, sum_of_products
from tests.kernels import ssd_cases as cases
from tests.kernels.mutants import caught, mutated
from tests.kernels.ssd_cases import Case, Options

COVER = [
    Options(t=1, io="bf16", D="channel", z=True, h=3, g=1, p=32, n=32, seed=1),
    Options(t=1, io="bf16", state="bf16", z=True, seed=2, poison=7.0),
    Options(b=1, t=2, z=True, p=5, n=19, D="", bias=False, seed=3),
    Options(t=3, io="bf16", z=True, gentle=True, limit=(0.05, 0.8), softplus=False, seed=4, poison=3.0),
]


def drawn(o: Options, padding: bool = True) -> tuple[Case, dict[str, torch.Tensor]]:
    """A case, the norm's weight, and where the squares go."""
    case = cases.draw(o, padding)
    weight = torch.from_numpy(np.random.default_rng(o.seed + 50).normal(size=(o.h, o.p))).float()
    squares = cases.strided(np.full((o.b, o.t, ssd_gated.parts(o.h, o.p)), o.poison), torch.float32, o.poison)
    return case, {"weight": weight, "squares": squares}


def check(module: ModuleType, o: Options) -> None:
    """v, squares and state within the bound; nothing else of the pool, of the outputs, or of any input has changed."""
    (case, more), (fresh, other) = drawn(o), drawn(o)
    g, S = case.bound(io="fp32")
    before = case.before(**more)
    v, squares = case.call(module.ssd_gated, **more)
    assert v is case.out
    assert squares is more["squares"]
    weighted = (g * constant(cases.doubles(more["weight"]), g.contract)).store(o.io)  # type: ignore[arg-type]
    cases.assert_within("v", v, weighted, case.rows)
    cases.assert_within("S", case.S, S, case.named)
    tile = min(16, 1 << (o.p - 1).bit_length())
    tiles = g.map(lambda a: np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, -o.p % tile)]).reshape(*a.shape[:2], -1, tile))
    cases.assert_within("squares", squares, sum_of_products(("...i, ...i -> ...", tiles, tiles)), case.rows)
    case.S[case.named], case.out[case.rows] = fresh.S[case.named], fresh.out[case.rows]
    more["squares"][case.rows] = other["squares"][case.rows]
    cases.unchanged(before)


def check_bytes(module: ModuleType, o: Options) -> None:
    case, more = drawn(o, padding=False)
    named = {name: getattr(case, name) for name in ("S", "x", "dt", "B", "C", "out")} | {"squares": more["squares"]}
    params = {name: x for name, x in case.extra.items() if name != "z"}
    params |= {"A": case.A, "slots": case.slots, "weight": more["weight"]}
    with watch(**named, **params, z=case.extra["z"]) as seen:
        case.call(module.ssd_gated, **more)
    left_out = sum(seen.loaded(name).distinct for name in params)
    sizes = {"state": case.S.element_size(), "io": case.x.element_size()}
    assert seen.distinct_bytes() - left_out == module.traffic_bytes(o.b, o.t, o.h, o.p, o.n, o.g, **sizes)
    states = o.b * o.h * o.p * o.n * sizes["state"]
    assert seen.loaded("S").requested == seen.stored("S").requested == states
    assert seen.outside == seen.races == []


@pytest.mark.parametrize("o", COVER, ids=str)
def test_the_gated_rows_and_their_squares_lie_within_the_bound_and_nothing_else_is_written(o: Options) -> None:
    check(ssd_gated, o)


@pytest.mark.parametrize("o", COVER[:3], ids=str)
def test_bytes_equal_the_formula_and_the_state_is_read_once(o: Options) -> None:
    check_bytes(ssd_gated, o)


def test_a_row_has_the_same_bits_alone_and_in_any_batch() -> None:
    o = Options(b=4, t=1, io="bf16", z=True, D="channel", seed=5)
    together, more = drawn(o, padding=False)
    alone, other = drawn(o, padding=False)
    together.call(ssd_gated.ssd_gated, **more)
    for b in range(o.b):
        row = slice(b, b + 1)
        tokens = {name: getattr(alone, name)[row] for name in cases.TOKENS} | {"z": alone.extra["z"][row]}
        given = tokens | {"slots": alone.slots[row], "out": alone.out[row], "squares": other["squares"][row]}
        alone.call(ssd_gated.ssd_gated, weight=other["weight"], **given)
    assert cases.untouched(cases.whole(together.S), cases.whole(alone.S))
    assert torch.equal(together.out, alone.out)
    assert torch.equal(more["squares"], other["squares"])


@pytest.mark.interpreter
def test_products_are_rounded_before_they_are_summed_as_where_a_row_keeps_its_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter fuses nothing: what the compiler may fuse is seen in what it is asked for."""
    asked: list[dict[str, Any]] = []

    class Recorded:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *given, **options: asked.append(options)

    case, more = drawn(Options(t=1, io="bf16", z=True), padding=False)
    monkeypatch.setattr(ssd_gated, "ssd_scan_kernel", Recorded())
    case.call(ssd_gated.ssd_gated, **more)
    assert [options["enable_fp_fusion"] for options in asked] == [False]


def test_a_norm_and_a_projection_behind_it_are_those_of_the_oracle() -> None:
    """rms(y silu(z)) W^T, each step of it as its contract rounds it."""
    o = Options(t=1, io="bf16", z=True, h=3, g=1, p=32, n=16, seed=6)
    case, more = drawn(o, padding=False)
    g = case.bound(io="fp32")[0].map(lambda a: a.reshape(o.b, -1))
    c = o.h * o.p
    W = torch.from_numpy(np.random.default_rng(8).normal(size=(21, c)) * c**-0.5).bfloat16()
    v, squares = case.call(ssd_gated.ssd_gated, **more)
    y = linear_rows.linear_rows(v.reshape(o.b, c), W, squares=squares[:, 0].contiguous(), eps=1e-5, block_k=64)
    contract = g.contract
    weighted = (g * constant(cases.doubles(more["weight"]).ravel(), contract)).store("bf16")
    mean = sum_of_products(("...i, ...i -> ...", g, g)) * constant(1 / c, contract)
    product = sum_of_products(("...i, oi -> ...o", weighted, constant(cases.doubles(W), contract)), matmuls=1)
    found = (product * eb.rsqrt(mean + 1e-5)[..., None]).store("bf16")
    comparison = eb.compare(cases.doubles(y), found.value, found.error)
    assert comparison.passed, str(comparison)


MUTANTS = {
    "no weight": ("y_t *= scale", "y_t *= 1.0", "_walk_tokens"),
    "the weight of another head": ("tl.load(weight + h * P + p,", "tl.load(weight + p,", "ssd_scan_kernel"),
    "squares of what is weighted": (
        "tl.sum(tl.where(in_p, y_t * y_t, 0.0), axis=0)",
        "tl.sum(tl.where(in_p, y_t * y_t * scale, 0.0), axis=0)",
        "_walk_tokens",
    ),
    "squares of another tile": (
        "tile = h * tl.num_programs(0) + tl.program_id(0)",
        "tile = h + tl.num_programs(1) * tl.program_id(0)",
        "_walk_tokens",
    ),
    "squares of another token": ("tl.cast(t, tl.int64) * stride_squares.t", "0 * stride_squares.t", "_walk_tokens"),
    "squares of another row": ("squares + b * stride_squares.b", "squares + b // 2 * stride_squares.b", "_walk_tokens"),
    "no gate": ("C, D, z, dt_bias,", "C, D, None, dt_bias,", "ssd_gated"),
    "the state unwritten": ("WRITE_STATE=True", "WRITE_STATE=False", "ssd_gated"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_caught(name: str) -> None:
    old, new, at = MUTANTS[name]
    assert caught(mutated(ssd_gated, old, new, at=at), check, COVER)
