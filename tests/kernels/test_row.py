"""A row: what annotations say, and which tensors a call that is checked against them may hold."""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import pytest
import torch
from torch import Tensor

from ssmspec_kernels.launch import INDICES
from ssmspec_kernels.row import FP32, Axes, Only, launcher, points, reads, row_of, updates, weighs, writes
from ssmspec_ref.errors import PrecisionError, ShapeMismatch


@dataclass(frozen=True)
class Ring:
    x: Annotated[Tensor, updates("s l h")]
    held: Annotated[Tensor, points("s")]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.x, self.held


class Out(NamedTuple):
    y: Annotated[Tensor, writes("b t")]
    number: Annotated[Tensor, writes("b", INDICES)]


@launcher
def launched(
    axes: Axes,
    S: Annotated[Tensor, updates("s h")],
    x: Annotated[Tensor, reads("b t h")],
    *,
    g: Annotated[Tensor, reads("b t | b t h")] | None = None,
    bias: Annotated[Tensor, weighs("h | h h", FP32, "whole")] | None = None,
    ring: Ring | None = None,
    kept: Annotated[Ring, Only(("x",))] | None = None,
    out: Out | None = None,
    block: int = 4,
) -> Axes:
    return axes


def call(**changes: Any) -> dict[str, int]:
    return launched(**({"S": torch.zeros(5, 3), "x": torch.zeros(2, 4, 3)} | changes))


def test_a_row_names_the_tensors_in_the_order_of_the_signature_and_those_of_records_by_their_fields() -> None:
    row = row_of(launched)
    names = ["S", "x", "g", "bias", "ring.x", "ring.held", "kept.x", "out.y", "out.number"]
    assert [e.name for e in row] == names
    assert [e.name for e in row if not e.optional] == ["S", "x"]
    assert [e.name for e in row if e.argument.written] == ["S", "ring.x", "out.y", "out.number"]
    assert [e.name for e in row if e.argument.read] == ["S", "x", "g", "bias", "ring.x", "ring.held", "kept.x"]
    assert [e.argument.size for e in row] == ["state", "io", "io", "", "state", "", "state", "io", "index"]


def test_the_sizes_of_a_call_are_those_of_all_its_tensors() -> None:
    assert call() == {"s": 5, "h": 3, "b": 2, "t": 4}
    ring, out = Ring(torch.zeros(5, 7, 3), torch.zeros(5, dtype=torch.int32)), Out(torch.zeros(2, 4), torch.zeros(2).long())
    assert call(ring=ring, out=out) == {"s": 5, "h": 3, "b": 2, "t": 4, "l": 7}
    with pytest.raises(ShapeMismatch, match=r"ring.held has shape .* axis s has size 5 in S"):
        call(ring=Ring(ring.x, torch.zeros(4, dtype=torch.int32)))
    with pytest.raises(PrecisionError, match=r"out\.number is torch\.float32, but the kernel takes int32 or int64"):
        call(out=Out(out.y, torch.zeros(2)))


def test_all_tensors_of_two_forms_have_the_form_of_the_first() -> None:
    assert call(g=torch.zeros(2, 4), bias=torch.zeros(3)) == call(g=torch.zeros(2, 4, 3), bias=torch.zeros(3, 3))
    with pytest.raises(ShapeMismatch, match=r"bias has shape \(3,\), but its axes are \(h h\)"):
        call(g=torch.zeros(2, 4, 3), bias=torch.zeros(3))
    with pytest.raises(ShapeMismatch, match=r"g has shape \(2,\), but its axes are \(b t\)"):
        call(g=torch.zeros(2))


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"x": torch.zeros(2, 4, 2)}, ShapeMismatch, "axis h has size 3 in S; give both the same h"),
    ({"x": torch.zeros(2, 4)}, ShapeMismatch, r"its axes are \(b t h\)"),
    ({"x": torch.zeros(2, 0, 3)}, ShapeMismatch, "axis t is empty"),
    ({"x": torch.zeros(2, 4, 3).double()}, PrecisionError, "float64, but the kernel takes float32 or bfloat16 or float16"),
    ({"x": torch.zeros(2, 4, 3, device="meta")}, PrecisionError, "x lies on meta"),
    ({"x": torch.zeros(2, 4, 6)[..., ::2]}, ShapeMismatch, "stride 2 on its last axis"),
    ({"bias": torch.zeros(6)[::2]}, ShapeMismatch, "bias has strides .2,.; give it without gaps"),
    ({"bias": torch.zeros(3).half()}, PrecisionError, "bias is torch.float16, but the kernel takes float32"),
]


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED)
def test_a_tensor_that_is_not_in_the_row_is_refused_by_name(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(**changes)


def test_a_last_axis_of_one_entry_and_two_axes_may_have_gaps() -> None:
    assert call(S=torch.zeros(5, 1), x=torch.zeros(2, 4, 2)[..., ::2])["h"] == 1
    assert call(S=torch.zeros(5, 6)[:, ::2])["h"] == 3
