"""What launchers share: which tensors are taken, which are refused, and the form of what was chosen by measurement."""

import re

import pytest
import torch

from ssmspec_kernels import launch
from ssmspec_kernels.shared.tuning import H200
from ssmspec_kernels.ssd import ssd_inputs
from ssmspec_ref.errors import ParameterError, PrecisionError, ShapeMismatch


@pytest.mark.parametrize("shape", [(4, 1, 3), (3,)])
def test_a_last_axis_with_gaps_is_refused_unless_it_has_one_entry(shape: tuple[int, ...]) -> None:
    x = torch.zeros(*shape[:-1], 2 * shape[-1])[..., ::2]
    axes = " ".join("bth"[: len(shape)])
    with pytest.raises(ShapeMismatch, match="stride 2 on its last axis"):
        launch.sizes([("x", x, axes, launch.FLOATS)])
    assert launch.sizes([("x", x[..., :1], axes, launch.FLOATS)]) == dict(zip(axes.split(), (*shape[:-1], 1), strict=True))


def test_two_axes_and_integers_of_three_may_have_gaps() -> None:
    x = torch.zeros(4, 6)[:, ::2]
    assert launch.sizes([("x", x, "b t", launch.FLOATS)]) == {"b": 4, "t": 3}
    i = torch.zeros(2, 4, 6, dtype=torch.int32)[..., ::2]
    assert launch.sizes([("i", i, "b t j", launch.INDICES)]) == {"b": 2, "t": 4, "j": 3}


def test_an_absent_tensor_has_no_sizes_and_no_strides() -> None:
    assert launch.sizes([("x", None, "b t", launch.FLOATS)]) == {}
    assert launch.strides(None, 3) == (0, 0, 0)
    assert launch.strides(torch.zeros(2, 3, 4), 2) == (12, 4)
    assert launch.d_strides(None) == (0, 0)
    assert launch.d_strides(torch.zeros(6)[::2]) == (2, 0)
    assert launch.d_strides(torch.zeros(3, 5)) == (5, 1)


def test_wrong_tensors_are_refused_by_name() -> None:
    x, y = torch.zeros(2, 3), torch.zeros(2, 4)
    with pytest.raises(ShapeMismatch, match="axis t has size 3 in x"):
        launch.sizes([("x", x, "b t", launch.FLOATS), ("y", y, "b t", launch.FLOATS)])
    with pytest.raises(ShapeMismatch, match="its axes are"):
        launch.sizes([("x", x, "b t h", launch.FLOATS)])
    with pytest.raises(ShapeMismatch, match="axis t is empty"):
        launch.sizes([("x", x[:, :0], "b t", launch.FLOATS)])
    with pytest.raises(PrecisionError, match="takes int32 or int64"):
        launch.sizes([("x", x, "b t", launch.INDICES)])
    with pytest.raises(PrecisionError, match="lies on meta"):
        launch.sizes([("x", x, "b t", launch.FLOATS), ("y", x.to("meta"), "b t", launch.FLOATS)])


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
