"""Windows and trees of SSD with the first half of the gated norm: against the oracle, and in their bytes."""

from types import ModuleType

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.ssd import ssd_gated_window as kernel
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.error_bounds.arithmetic import constant, sum_of_products
from ssmspec_ref.shapes import Array
from tests.kernels import ssd_cases as cases
from tests.kernels.mutants import caught, mutated
from tests.kernels.ssd_cases import Case, Options

CHAINS = [
    Options(t=5, io="bf16", D="channel", z=True, h=3, g=1, p=32, n=32, seed=1, poison=7.0),
    Options(t=7, io="bf16", state="bf16", z=True, p=35, seed=2),
    Options(b=2, t=4, z=True, p=5, n=9, D="", bias=False, softplus=False, seed=3),
]
TREES = [
    Options(t=13, io="bf16", z=True, h=2, g=1, p=20, n=16, seed=4, poison=3.0),
    Options(b=2, t=19, io="bf16", z=True, h=2, g=1, p=64, n=16, gentle=True, seed=5),
]
COVER = [(o, False) for o in CHAINS] + [(o, True) for o in TREES]
BLOCK = 16


def drawn(o: Options, tree: bool, padding: bool = True) -> tuple[Case, dict[str, torch.Tensor], Array]:
    """A case, the norm's weight, where the squares go, and what sees what; what is no node is NaN."""
    case = cases.draw(o, padding)
    mask = cases.forest(o) if tree else np.broadcast_to(np.tri(o.t, dtype=bool), (o.b, o.t, o.t))
    dead = torch.from_numpy(~np.einsum("btt -> bt", mask))
    for x in (case.x, case.dt, case.B, case.C, case.extra["z"]):
        x[dead] = float("nan")
    weight = torch.from_numpy(np.random.default_rng(o.seed + 50).normal(size=(o.h, o.p))).float()
    block = min(BLOCK, 1 << (o.p - 1).bit_length())
    squares = cases.strided(np.full((o.b, o.t, o.h * -(-o.p // block)), o.poison), torch.float32, o.poison)
    more = {"weight": weight, "squares": squares}
    return case, more | ({"ancestors": torch.from_numpy(mask)} if tree else {}), mask


def check(module: ModuleType, o: Options, tree: bool) -> None:
    """v and squares within the bound; nothing else of any tensor has changed."""
    (case, more, mask), (fresh, other, _) = drawn(o, tree), drawn(o, tree)
    seen, block = mask[case.rows], min(BLOCK, 1 << (o.p - 1).bit_length())
    window, contract = case.window(np.einsum("btt -> bt", seen)), o.contract(io="fp32", order="output_only")
    g = eb.ssd.tree(case.state(), window, seen, case.params(), contract)
    before = case.before(**more)
    v, squares = case.call(module.ssd_gated_window, **more, block_p=block)
    assert v is case.out
    assert squares is more["squares"]
    weighted = (g * constant(cases.doubles(more["weight"]), g.contract)).store(o.io)  # type: ignore[arg-type]
    cases.assert_within("v", v, weighted, case.rows)
    tiles = g.map(lambda a: np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, -o.p % block)]).reshape(*a.shape[:2], -1, block))
    cases.assert_within("squares", squares, sum_of_products(("...i, ...i -> ...", tiles, tiles)), case.rows)
    case.out[case.rows], squares[case.rows] = fresh.out[case.rows], other["squares"][case.rows]
    cases.unchanged(before)


def check_bytes(module: ModuleType, o: Options, tree: bool) -> None:
    case, more, _ = drawn(o, tree, padding=False)
    for x in (case.x, case.dt, case.B, case.C, case.extra["z"]):
        x.nan_to_num_(1.0)
    if tree:
        more["ancestors"] = torch.ones(o.b, o.t, o.t, dtype=torch.bool).tril()
    named = {name: getattr(case, name) for name in ("S", "x", "dt", "B", "C", "out")} | {"z": case.extra["z"], **more}
    params = {name: x for name, x in case.extra.items() if name != "z"} | {"A": case.A, "slots": case.slots}
    with watch(**named, **params) as seen:
        case.call(module.ssd_gated_window, **more, block_p=min(BLOCK, 1 << (o.p - 1).bit_length()))
    left_out = sum(seen.loaded(name).distinct for name in (*params, "weight"))
    sizes = {"state": case.S.element_size(), "io": case.x.element_size(), "parts": more["squares"].shape[2]}
    expected = module.traffic_bytes(o.b, o.t, o.h, o.p, o.n, o.g, tree=tree, **sizes)
    assert seen.distinct_bytes() - left_out == expected
    assert seen.loaded("S").requested == o.b * o.h * o.p * o.n * case.S.element_size()
    assert seen.stored("S").requested == 0
    assert seen.outside == seen.races == []


@pytest.mark.parametrize(("o", "tree"), COVER, ids=str)
def test_the_gated_rows_and_their_squares_lie_within_the_bound_and_nothing_else_is_written(o: Options, tree: bool) -> None:
    check(kernel, o, tree)


@pytest.mark.parametrize(("o", "tree"), [COVER[0], COVER[2], COVER[3]], ids=str)
def test_bytes_equal_the_formula_and_the_state_is_read_once(o: Options, tree: bool) -> None:
    check_bytes(kernel, o, tree)


@pytest.mark.parametrize(
    ("o", "tile"),
    [(CHAINS[0], 32), (Options(b=1, t=17, io="bf16", z=True, h=2, g=1, p=80, n=16, seed=6), 64)],
    ids=str,
)
def test_tiles_of_its_own_are_as_many_as_it_says(o: Options, tile: int) -> None:
    """Wider ones for more than 16 tokens."""
    case, more, _ = drawn(o, False)
    v, squares = case.call(kernel.ssd_gated_window, weight=more["weight"], squares=None)
    assert squares.shape == (o.b, o.t, o.h * -(-o.p // tile))
    rows = torch.from_numpy(case.rows)
    wanted = case.call(kernel.ssd_gated_window, weight=torch.ones_like(more["weight"]), squares=None, out=None)[0]
    sums = wanted[rows].float().square().sum((2, 3))
    assert torch.allclose(squares[rows].sum(2), sums, rtol=2.0**-7)  # the rows were rounded to bf16, twice 2^-8 in a square
    assert v is case.out


def check_split(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of two tiles, as 256 heads of rows get: of 40 channels the fourth tile is none."""
    monkeypatch.setattr(module, "window_tiles", lambda *_: (16, 32, 1, 2, 3))
    case = cases.draw(Options(b=1, t=4, h=3, g=1, p=40, n=16, z=True, seed=4), padding=False)
    room = torch.full((5, 9), 7.0)
    squares = room[:4][None]
    v, _ = case.call(module.ssd_gated_window, weight=torch.ones(3, 40), squares=squares, out=torch.empty_like(case.x))
    sums = torch.stack([part.square().sum(3) for part in v.split(16, dim=3)], 3).flatten(2)
    torch.testing.assert_close(squares, sums)
    assert bool((room[4] == 7.0).all()), "squares of a tile that is none were written behind the last token's"


def test_tiles_that_do_not_divide_a_head_write_no_squares_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_split(kernel, monkeypatch)


def test_planted_squares_of_a_tile_that_is_none_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        check_split(mutated(kernel, "// BLOCK_P % TILES != 0", "// BLOCK_P % TILES < 0", at="_store_squares"), monkeypatch)


MUTANTS = [
    ("y_t *= tl.load(weight + h * P + p_t,", "y_t *= 0.0 + tl.load(weight + p_t,", "ssd_window_kernel"),
    ("tl.sum(y_t * y_t, axis=1)", "tl.sum(y_t, axis=1)", "_store_squares"),
    ("part = h * tl.cdiv(P, BLOCK_P)", "part = h", "_store_squares"),
    ("tl.program_id(0) * TILES + tile\n", "tile\n", "_store_squares"),
    ("squares + b * stride_squares.b", "squares + b // 2 * stride_squares.b", "_store_squares"),
    ("t * stride_squares.t + part", "t % 2 + part", "_store_squares"),
    ("D, z, dt_bias, dt_softplus", "D, None, dt_bias, dt_softplus", "ssd_gated_window"),
    ("given, None, ancestors, False", "given, None, ancestors, True", "ssd_gated_window"),
    ("given, None, ancestors, False", "given, None, None, False", "ssd_gated_window"),
]


@pytest.mark.parametrize(("old", "new", "at"), MUTANTS)
def test_planted_faults_are_caught(old: str, new: str, at: str) -> None:
    assert caught(mutated(kernel, old, new, at=at), lambda m, one: check(m, *one), COVER)
