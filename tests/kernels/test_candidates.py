"""Candidates beside what stands, in the interpreter: the same bits, or the rounding of another order of sums."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from perf_gates.gpu.candidates import __main__ as command
from perf_gates.gpu.candidates import pairs
from perf_gates.gpu.candidates import ssd_conv_gated as conv
from perf_gates.gpu.candidates import ssd_verify_split as split
from perf_gates.gpu.candidates.delta_step_gram import FEW, MANY, delta_step_gram
from perf_gates.gpu.paired_timing import WrongOutputError
from ssmspec_kernels.conv.conv_step import conv_step
from ssmspec_kernels.delta.delta_scan import delta_scan
from ssmspec_kernels.ssd.ring.ssd_buffered import ssd_buffered
from ssmspec_kernels.ssd.ring.ssd_ring import Ring
from ssmspec_kernels.ssd.ssd_gated import ssd_gated
from tests.kernels.device import COMPILED


def bf16(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def both(written: Callable[[Any], dict[str, Tensor]], candidate: Any, stands: Any) -> tuple[dict[str, Tensor], ...]:
    return written(candidate), written(stands)


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> list[str]:
    """The names of what has other bits."""
    return [name for name, mine in found.items() if not torch.equal(mine, wanted[name])]


def window(held: tuple[int, ...], lengths: tuple[int, ...] | None, **how: Any) -> Callable[[Any], dict[str, Tensor]]:
    """What a verification writes: rows that are open, due, and padding, over a ring that wraps."""
    torch.manual_seed(how.get("seed", 0))
    b, t, h, p, n, g, L = 3, 6, how.get("h", 2), how.get("p", 24), how.get("n", 40), how.get("g", 1), 32
    slots, count = ints(2, 0, 1 if lengths else -1), torch.zeros(4, dtype=torch.int32)
    count[[2, 0, 1]] = ints(*held)
    S, x, dt, B, C = torch.randn(4, h, p, n), bf16(b, t, h, p), bf16(b, t, h), bf16(b, t, g, n), bf16(b, t, g, n)
    entries = bf16(4, L, h, p), torch.rand(4, L, h), bf16(4, L, g, n), ints(3, 7, 30, 0), count
    A, bias, given = -torch.rand(h), torch.randn(h), {"lengths": lengths and torch.tensor(lengths, dtype=torch.int32)}
    given |= {"D": torch.randn(h, p), "z": bf16(b, t, h, p)} if how.get("channel") else {"D": torch.randn(h)}

    def written(launcher: Any) -> dict[str, Tensor]:
        pool, ring, y = S.clone(), Ring(*(part.clone() for part in entries)), torch.full((b, t, h, p), 7.0).bfloat16()
        launcher(pool, ring, x, dt, A, B, C, dt_bias=bias, slots=slots, out=y, **given)
        return {"y": y, "S": pool, "x": ring.x, "dt": ring.dt, "B": ring.B}

    return written


@pytest.mark.parametrize(
    ("held", "lengths", "how"),
    [
        ((10, 26, 3), None, {"n": 128, "p": 32}),
        ((26, 0, 21), (4, 0, 6), {"channel": True, "g": 2, "seed": 1}),
        ((12, 24, 26), (6, 1, 0), {"seed": 2}),
    ],
)
def test_verification_in_two_launches_has_the_bits_of_the_one_that_stands(held: Any, lengths: Any, how: Any) -> None:
    assert same(*both(window(held, lengths, **how), split.ssd_verify_split, ssd_buffered)) == []


def delta(launcher: Any, **more: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    b, g, h, k, v = 2, 1, 2, 128, 64
    S, given = torch.randn(4, h, k, v), (bf16(b, 1, g, k), bf16(b, 1, g, k), bf16(b, 1, h, v), bf16(b, 1, h), bf16(b, 1, h))
    A, bias = -torch.rand(h), torch.randn(h)
    o = launcher(S, *given, A=A, dt_bias=bias, slots=ints(3, 1), **more)
    return {"o": o, "S": S}


@pytest.mark.parametrize("tiles", [FEW, MANY])
def test_norms_by_products_differ_by_the_rounding_of_sums(tiles: tuple[int, int, int]) -> None:
    found, wanted = delta(delta_step_gram, tiles=tiles), delta(delta_scan)
    assert torch.allclose(found["S"], wanted["S"], rtol=0, atol=2**-20)  # sums of 128 in fp32 in two orders, times 4
    far = (found["o"].float() - wanted["o"].float()).abs().max() / wanted["o"].float().abs().max()
    assert far <= pairs.ROUNDING


def plain_step(fused: bool) -> dict[str, Tensor]:
    """One token from the projection on, windows with their oldest column first."""
    torch.manual_seed(0)
    b, h, p, n, g, w = 3, 4, 20, 40, 2, 4
    c, slots, turn = h * p + 2 * g * n, ints(3, -1, 1), ints(0, 2, 1, 3, 0)
    S, M, u, filters, bias = torch.randn(5, h, p, n), bf16(5, c, w), bf16(b, c), bf16(c, w), bf16(c)
    dt, A, v = bf16(b, 1, h), -torch.rand(h), torch.zeros(b, 1, h, p).bfloat16()
    given: dict[str, Any] = {"z": bf16(b, 1, h, p), "weight": torch.randn(h, p), "D": torch.randn(h)}
    given |= {"dt_bias": torch.randn(h), "slots": slots, "out": v, "squares": torch.zeros(b, 1, 2 * h)}
    if fused:
        M = torch.stack([row.roll(int(at), 1) for row, at in zip(M, turn, strict=True)])
        conv.ssd_conv_gated(S, M, turn, u, filters, dt, A, groups=g, bias=bias, **given)
        turn[[3, 1]] += 1
        M = torch.stack([row.roll(-int(at), 1) for row, at in zip(M, turn, strict=True)])
    else:
        x, B, C = conv_step(M, u, filters, bias=bias, slots=slots)[:, None].split([h * p, g * n, g * n], 2)
        ssd_gated(S, x.unflatten(2, (h, p)), dt, A, B.unflatten(2, (g, n)), C.unflatten(2, (g, n)), **given)
    return {"v": v, "squares": given["squares"], "S": S, "M": M}


def test_convolution_and_step_in_one_launch_have_the_bits_of_two() -> None:
    assert same(plain_step(True), plain_step(False)) == []


@pytest.mark.interpreter
def test_every_pair_is_named_once_and_counts_its_bytes() -> None:
    names = [str(pair) for pair in pairs.pairs()]
    assert len(names) == len(set(names))
    assert all(pair.bytes > 0 for pair in pairs.pairs())


def test_planted_fault_in_what_a_candidate_writes_is_not_timed() -> None:
    like = torch.zeros(2, 1)
    state = torch.ones(2)

    def fill(number: float) -> pairs.Side:
        return pairs.Side(lambda slots, y: y.fill_(number), {"S": state}, like)

    if COMPILED:
        assert command.first_launches((fill(1.0), fill(1.0)), 2) == {"outputs": 0.0, "S": 0.0}
    assert command.compared({"y": torch.ones(2)}, {"y": torch.ones(2)}) == {"y": 0.0}
    far = command.compared({"y": torch.tensor([1.0, 1.1])}, {"y": torch.ones(2)})
    assert far["y"] == pytest.approx(0.1, rel=1e-6)
    left = command.compared({"y": torch.tensor([1.0, float("nan")])}, {"y": torch.ones(2)})
    assert not left["y"] <= pairs.ROUNDING
    assert replace(fill(1.0), written={}).written == {}
    assert issubclass(WrongOutputError, RuntimeError)
