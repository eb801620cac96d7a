"""The outputs of a launcher: those that were given, returned; where none were given, made with the same bits."""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from ssmspec_kernels.row import row_of
from tests.kernels.calls import LAUNCHERS, Form, call, forms, replaced, tensors
from tests.kernels.mutants import mutated

BESIDE = {"pool", "advanced_length", "root"}
"""Written, but not returned."""


def returned_by(run: Callable[..., Any]) -> list[str]:
    """The parameters that a launcher makes and returns, where they are not given."""
    made = [e.parameter for e in row_of(run) if e.optional and not e.argument.read and e.parameter not in BESIDE]
    return list(dict.fromkeys(made))


def flat(returned: Any) -> list[Tensor]:
    return [*returned] if isinstance(returned, tuple) else [returned]


def check(module: ModuleType, name: str, form: Form) -> None:
    """What is given is returned, and what is made is of its shape, its type, its bits, and nobody else's memory."""
    run = vars(module)[name]
    given, other, names = call(name, form), call(name, form), returned_by(run)
    for entry in row_of(run):
        if entry.parameter in names:
            x = entry.of(given)
            assert x is not None
            whole = torch.full_like(x, 101, memory_format=torch.contiguous_format)  # as is made: one variant of the kernel
            given = replaced(given, entry, whole)
    returned, made = flat(run(**given)), flat(run(**other | dict.fromkeys(names)))
    kept = [x for parameter in names for x in flat(given[parameter])]
    taken = {x.untyped_storage().data_ptr() for x in tensors(name, other).values()}
    assert len(returned) == len(made) == len(kept)
    for out, came, y in zip(kept, returned, made, strict=True):
        assert came is out
        assert (y.shape, y.dtype) == (out.shape, out.dtype)
        assert torch.isfinite(out).all()
        assert torch.equal(y, out)
        assert y.untyped_storage().data_ptr() not in taken


MAKING = [name for name in LAUNCHERS if returned_by(vars(LAUNCHERS[name])[name])]


@pytest.mark.parametrize("name", MAKING)
def test_outputs_are_those_given_and_otherwise_made(name: str) -> None:
    check(LAUNCHERS[name], name, forms(name)[0])


LONG = replace(forms("delta_buffered_step")[0], options={"short": False})


def test_the_output_of_long_rings_is_the_one_given_and_otherwise_made() -> None:
    check(LAUNCHERS["delta_buffered_step"], "delta_buffered_step", LONG)


FAULTS = [
    ("delta_buffered_step", LONG, "return o\n\n\ndef tile(", "return h\n\n\ndef tile("),
    ("ssd_buffered", None, "return y\n\n\ndef _launch(", "return z\n\n\ndef _launch("),
    ("ssd_buffered_step", None, "return y\n\n\ndef tile(", "return x\n\n\ndef tile("),
    ("delta_buffered", None, "torch.empty_like(v)", "torch.empty_like(v, dtype=g.dtype)"),
    ("selective_scan", None, "torch.empty_like(x)", "x"),
    ("ssd_gated", None, "j, dtype=torch.float32, device", "j, dtype=x.dtype, device"),
    ("ssd_gated", None, "if squares is None else squares", "if squares is None else squares.clone()"),
]


@pytest.mark.parametrize(("name", "form", "old", "new"), FAULTS, ids=[new[:20] for *_, new in FAULTS])
def test_a_planted_output_is_caught(name: str, form: Form | None, old: str, new: str) -> None:
    with pytest.raises(AssertionError):
        check(mutated(LAUNCHERS[name], old, new), name, forms(name)[0] if form is None else form)
