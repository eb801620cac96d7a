"""What launchers share: strides, heads of a program, and the form of what was chosen by measurement."""

import re

import pytest
import torch

from ssmspec_kernels import launch
from ssmspec_kernels.shared.tuning import H200
from ssmspec_kernels.ssd import ssd_inputs
from ssmspec_ref.errors import ParameterError


def test_an_absent_tensor_has_no_strides() -> None:
    assert launch.strides(None, 3) == (0, 0, 0)
    assert launch.strides(torch.zeros(2, 3, 4), 2) == (12, 4)
    assert launch.d_strides(None) == (0, 0)
    assert launch.d_strides(torch.zeros(6)[::2]) == (2, 0)
    assert launch.d_strides(torch.zeros(3, 5)) == (5, 1)


def test_the_heads_of_a_program_divide_those_of_a_group() -> None:
    ssd_inputs.check_heads(2, 6)
    with pytest.raises(ParameterError, match="4 heads a program do not divide the 6 heads of a group"):
        ssd_inputs.check_heads(4, 6)


OF_A_PROGRAM = re.compile(r"(?!early_)(\w+_)?(warps|block)(_\w+)?")
"""`early_warps` counts those of all programs."""


def test_warps_and_blocks_of_a_program_are_powers_of_two() -> None:
    """Triton compiles nothing else, and the interpreter, which has no warps, takes any number of them."""
    chosen = {(kernel, name): n for kernel, row in H200.items() for name, n in row.items() if OF_A_PROGRAM.fullmatch(name)}
    assert len(chosen) > 80
    assert {at: n for at, n in chosen.items() if n.bit_count() != 1} == {}
