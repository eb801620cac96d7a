"""The SSD window through matrix products, and its first half of a norm: what they are held to beside the laws."""

from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_kernels.ssd import ssd_gated_window, ssd_window
from ssmspec_ref.errors import Unsupported
from tests.kernels import ssd_plot as ssd
from tests.kernels.laws import check_bound, check_bytes
from tests.kernels.mutants import mutated
from tests.kernels.ssd_plot import Options
from tests.kernels.ssd_subjects import CHAINS, GATED_WINDOW, WINDOW
from tests.kernels.tensors import Kept, check_within, doubles


def check_window_tiles(module: ModuleType) -> None:
    """With many rows a program owns whole heads, in the fewest tiles of a size that a block of threads can have."""
    for p, t in product((16, 48, 64, 80, 128, 200), (4, 16, 17, 32)):
        if t <= 16 or p >= 64:
            block, program, heads, _, _ = module.window_tiles(4096, t, 8, p, True)
            assert block.bit_count() == 1
            assert 0 <= program - p < block
            assert program % block == 8 % heads == 0


def test_programs_of_many_rows_own_whole_heads() -> None:
    check_window_tiles(ssd_window)


def check_strong_decays(module: ModuleType) -> None:
    """exp(G_i - G_j) of a pair that is not seen overflows; what is seen underflows to 0."""
    call = WINDOW.draw(Options(t=9, softplus=False, bias=False, padding=False))
    call["A"].fill_(-400.0)
    y, S = ssd.scanned(call, order="output_only")
    call.run(module)
    check_within(doubles(call["out"]), y)
    check_within(doubles(call["S"][call.named]), S)


def test_decays_beyond_the_range_of_exp_give_no_nan() -> None:
    check_strong_decays(ssd_window)


def check_last_token(module: ModuleType, io: str, after: int) -> None:
    """The last real token's weight in the state is its dt, exactly: what it adds to nothing is dt x B of powers of two."""
    call = WINDOW.draw(Options(t=9, softplus=False, bias=False, io=io, live=True, padding=False))
    call["live"].copy_((torch.arange(9) < 9 - after).expand(3, 9))
    call["A"].fill_(-400.0)
    call["dt"].copy_(torch.from_numpy(np.random.default_rng(5).uniform(0.02, 1.0, call["dt"].shape)))
    for tokens in (call["x"], call["B"]):
        tokens.copy_(torch.from_numpy(np.random.default_rng(6).choice([-2.0, -0.5, 1.0, 4.0], tokens.shape)))
    last = 8 - after
    call["x"][:, :last] = 0.0
    call["C"].fill_(1.0)
    call["S"][call.named] = 0.0
    call.run(module)
    x, dt, B = (doubles(call[name])[:, last] for name in ("x", "dt", "B"))
    added = dt[..., None, None] * x[..., None] * np.repeat(B, 2, axis=1)[:, :, None, :]
    assert np.array_equal(doubles(call["S"][call.named]), added)


@pytest.mark.parametrize("io", ["fp32", "bf16"])
@pytest.mark.parametrize("after", [0, 3])
def test_the_last_tokens_weight_is_its_dt_whatever_decays_came_before_and_however_many_no_ops_follow(
    io: str, after: int
) -> None:
    check_last_token(ssd_window, io, after)


def test_a_tile_that_is_compiled_to_wrong_results_is_refused() -> None:
    call = WINDOW.draw(Options(t=33, h=2, g=1, io="bf16", padding=False))
    kept = Kept(**call.tensors)
    with pytest.raises(Unsupported, match="tiles of 16 channels with 4 warps are refused for 33 tokens"):
        call.run(ssd_window, block_p=16, num_warps=4, write_state=False)
    kept.check()


def check_chain(module: ModuleType) -> None:
    for o in CHAINS.cover:
        check_bound(CHAINS, module, o)
    check_bytes(CHAINS, module, CHAINS.moves[0])


def test_chains_of_many_rows_lie_within_the_bound_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssd_window, "has_many_tiles", lambda *_: True)
    check_chain(ssd_window)


def test_planted_products_of_a_later_turn_are_caught_where_rows_are_many() -> None:
    old, new = "if MANY and index == first:", "if MANY and index == first + 1:"
    mutant = mutated(ssd_window, old, new, at="ssd_window_chain_kernel")
    check_chain(mutant)
    mutant.has_many_tiles = lambda *_: True  # type: ignore[attr-defined]
    with pytest.raises(AssertionError):
        check_chain(mutant)


@pytest.mark.parametrize(
    ("o", "tile"),
    [(GATED_WINDOW.cover[0], 32), (Options(b=1, t=17, io="bf16", z=True, h=2, g=1, p=80, n=16, seed=6), 64)],
    ids=str,
)
def test_tiles_of_its_own_are_as_many_as_it_says(o: Options, tile: int) -> None:
    """Wider ones for more than 16 tokens."""
    call = GATED_WINDOW.draw(o)
    v, squares = call.run(ssd_gated_window, squares=None, block_p=None)
    assert v is call["out"]
    assert squares.shape == (o.b, o.t, o.h * -(-o.p // tile))
    rows, ones = torch.from_numpy(call.rows), torch.ones_like(call["weight"])
    wanted = call.run(ssd_gated_window, weight=ones, squares=None, out=None, block_p=None)[0]
    sums = wanted[rows].float().square().sum((2, 3))
    assert torch.allclose(squares[rows].sum(2), sums, rtol=2.0**-7)  # the rows were rounded to bf16, twice 2^-8 in a square


def check_split(module: Any) -> None:
    """Programs of two tiles, as 256 heads of rows get: of 40 channels the fourth tile is none."""
    call = ssd.with_norm("ssd_gated_window", lambda o: 9)(
        Options(b=1, t=4, h=3, g=1, p=40, n=16, z=True, padding=False, seed=4)
    )
    room, tiles = torch.full((5, 9), 7.0), module.window_tiles
    try:
        module.window_tiles = lambda *_: (16, 32, 1, 2, 3)
        v, squares = call.run(module, weight=torch.ones(3, 40), squares=room[:4][None], out=torch.empty(1, 4, 3, 40))
    finally:
        module.window_tiles = tiles
    sums = torch.stack([part.square().sum(3) for part in v.split(16, dim=3)], 3).flatten(2)
    torch.testing.assert_close(squares, sums)
    assert bool((room[4] == 7.0).all()), "squares of a tile that is none were written behind the last token's"


def test_tiles_that_do_not_divide_a_head_write_no_squares_beside_it() -> None:
    check_split(ssd_gated_window)


TOTAL = "tl.sum(tl.where(i == BLOCK_T - 1, G, 0.0), axis=0)"
FAULTS: list[tuple[Any, ...]] = [
    (check_window_tiles, 'triton.cdiv(p, block) * block, run, row["warps"]', 'triton.cdiv(p, 63) * block, run, row["warps"]'),
    (check_window_tiles, 'return block, triton.cdiv(p, block) * block, run, row["warps"]',
     'return 63, triton.cdiv(p, block) * block, run, row["warps"]'),
    (check_window_tiles, "triton.cdiv(p, block) * block, run, 1", "triton.cdiv(p, block) * 15, run, 1"),
    (check_strong_decays, "tl.minimum(G[:, None] - G[None, :], 88.0, propagate_nan=tl.PropagateNan.ALL)",
     "G[:, None] - G[None, :]"),
    (lambda module: check_last_token(module, "fp32", 0), TOTAL, "tl.sum(tl.where(k[None, :] == head, lds, 0.0))"),
    (lambda module: check_last_token(module, "fp32", 0), TOTAL, "tl.sum(tl.where(i == T - 2, G, 0.0), axis=0)"),
    (lambda module: check_last_token(module, "bf16", 3), "tl.where(e == last, G_e, 0.0)", "tl.where(e == last - 1, G_e, 0.0)",
     "_chain_weights"),
    (lambda module: check_bound(WINDOW, module, Options(io="bf16", gentle=True)), "lo, rest = cut(rest)",
     "lo, rest = cut(rest - rest)", "split3"),
    (check_split, "// BLOCK_P % TILES != 0", "// BLOCK_P % TILES < 0", "_store_squares"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=[new for _, _, new, *_ in FAULTS])
def test_planted_fault_of_one_law_is_caught(fault: Any) -> None:
    check, old, new, *at = fault
    mutant = mutated(ssd_gated_window if check is check_split else ssd_window, old, new, at=at[0] if at else None)
    with pytest.raises(AssertionError):
        check(mutant)
