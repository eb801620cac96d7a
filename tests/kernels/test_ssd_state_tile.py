"""What programs of short windows share: how many tiles are many, how long their runs are, and what the next head brings."""

from types import ModuleType

import pytest
import torch
import triton
import triton.language as tl

from ssmspec_kernels.ssd.ring import ssd_state_tile as ssd_tiles
from ssmspec_kernels.ssd.ring import ssd_tile_outputs as ssd_walk
from tests.kernels.mutants import mutated


def check_many(module: ModuleType) -> None:
    """16 rounds of programs and more: tiles of 16 channels, of all heads of all rows."""
    rounds = 16 * module.RESIDENT
    for heads, p in ((1, 16), (24, 17), (80, 64), (128, 100)):
        of_row = heads * -(-p // 16)
        fewest = -(-rounds // of_row)
        assert module.has_many_tiles(fewest, heads, p)
        assert not module.has_many_tiles(fewest - 1, heads, p)
        assert module.tiles_per_program(fewest, heads, heads, p) == -(-p // 16)


def test_tiles_are_many_from_16_rounds_of_programs_on() -> None:
    check_many(ssd_tiles)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("b * h * triton.cdiv(p, CHANNELS)", "b + h * triton.cdiv(p, CHANNELS)"),
        ("b * h * triton.cdiv(p, CHANNELS)", "b * h + triton.cdiv(p, CHANNELS)"),
        ("CHANNELS) >= H200", "CHANNELS) > H200"),
        ("        return head\n", "        return head + 1\n"),
    ],
)
def test_a_planted_count_of_tiles_is_caught(old: str, new: str) -> None:
    with pytest.raises(AssertionError):
        check_many(mutated(ssd_tiles, old, new))


@triton.jit  # type: ignore[untyped-decorator]
def _head(out, A, D, dt_bias, more, LOAD: tl.constexpr):  # type: ignore[no-untyped-def]
    decay, bias, skip = LOAD(A, D, dt_bias, 1, more != 0, 2, True)
    tl.store(out, decay)
    tl.store(out + 1, bias)
    tl.store(out + 2, skip)


def check_head(module: ModuleType) -> None:
    """Head 1; D lies at every second place."""
    A, D, bias = (torch.tensor(x) for x in ([-1.0, -2.0], [3.0, 4.0, 5.0], [6.0, 7.0]))
    for more, expected in ((1, [-2.0, 7.0, 5.0]), (0, [0.0, 0.0, 0.0])):
        out = torch.full((3,), float("nan"))
        _head[(1,)](out, A, D, bias, more, LOAD=module.load_head)
        assert out.tolist() == expected


def test_a_head_behind_the_last_brings_zeros() -> None:
    check_head(ssd_walk)


@pytest.mark.parametrize(
    ("old", "new"),
    [("mask=wanted, other=0.0", "mask=wanted, other=1.0"), ("_load(D + h * stride_D_h", "_load(D + h")],
)
def test_a_planted_head_is_caught(old: str, new: str) -> None:
    with pytest.raises(AssertionError):
        check_head(mutated(ssd_walk, old, new))
