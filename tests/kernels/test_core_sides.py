"""The sides of the core set, in Triton's interpreter at small shapes: what is timed is what float64 says, or is not timed."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from perf_gates.gpu import core
from perf_gates.gpu.kernels import steps
from perf_gates.gpu.paired_timing import WrongOutputError
from perf_gates.gpu.sides import tokens, windows
from perf_gates.static import shapes

pytestmark = pytest.mark.interpreter
SIDES = [
    ("tiny", "step"),
    ("tiny", "ring of 1"),
    ("tiny", "ring of 6"),
    ("tiny", "snapshots of 6"),
    ("tiny", "convolution of 1"),
    ("tiny", "convolution of 6"),
    ("tiny", "acceptance of 13"),
    ("tiny delta", "scan of 5"),
    ("tiny delta", "tree of 13"),
]


class OnHost(TorchFunctionMode):
    """Tensors of the device lie on the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return args[0] if func is Tensor.cuda else func(*args, **kwargs)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(shapes.SSD, "tiny", (4, 16, 32, 1))
    monkeypatch.setitem(shapes.DELTA, "tiny delta", (2, 4, 32, 32))
    monkeypatch.setitem(shapes.CONV, "tiny", 48)
    for module in (core, windows, tokens):
        monkeypatch.setattr(module, "copies_for", lambda *_, **__: 2)
    monkeypatch.setattr(core, "recorded", lambda launches: launches[0])
    torch.manual_seed(0)
    with OnHost():
        yield


@pytest.mark.parametrize(("dims", "operation"), SIDES)
def test_a_side_computes_what_float64_says(dims: str, operation: str, small: None) -> None:
    side = core.side(dims, operation, 2)
    side.check()
    assert side.launches >= (core.LEAST_SHORT if operation.startswith("acceptance") else core.LEAST)
    assert side.bytes > 0


@pytest.mark.parametrize(("dims", "operation"), SIDES)
def test_a_side_that_computes_something_else_is_not_timed(
    dims: str, operation: str, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel whose output is a little off, of acceptance by one token."""
    right = steps.kernel

    def wrong(name: str, function: str | None = None) -> Any:
        launcher: Callable[..., Any] = right(name, function)
        if function is not None:
            return launcher

        def off(*args: Any, **options: Any) -> Any:
            found = launcher(*args, **options)
            out = options["out"]
            (out.tokens if hasattr(out, "tokens") else out)[0].add_(1)
            return found

        return off

    for module in (core, windows, tokens):
        monkeypatch.setattr(module, "kernel", wrong)
    with pytest.raises(WrongOutputError):
        core.side(dims, operation, 2).check()


def test_acceptance_walks_the_same_trees_in_every_run(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[list[int]] = []
    right = tokens.walked

    def walk(*given: Any) -> list[int]:
        walked.append(right(*given))
        return walked[-1]

    monkeypatch.setattr(tokens, "walked", walk)
    for delayed in (0.0, 0.08):
        core.side("tiny", "acceptance of 13", 32, delayed).check()
    assert walked[:32] == walked[32:]
    assert any(len(found) > 1 for found in walked)
