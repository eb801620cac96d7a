"""A candidate beside the current kernels, in the interpreter: the same bits."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from perf_gates.gpu.candidates import __main__ as command
from perf_gates.gpu.candidates import pairs
from perf_gates.gpu.candidates import ssd_conv_gated as conv
from perf_gates.gpu.paired_timing import WrongOutputError
from ssmspec_kernels.conv.conv_step import conv_step
from ssmspec_kernels.ssd.ssd_gated import ssd_gated
from tests.kernels.device import COMPILED


def bf16(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> list[str]:
    """The names of what has other bits."""
    return [name for name, mine in found.items() if not torch.equal(mine, wanted[name])]


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
