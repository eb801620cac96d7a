"""Capture the launches of an operation once and replay them with the inputs of other calls.

    capture   the launch runs a few times to warm up and is recorded; then what it wrote into its inputs is put back
    replay    the outputs are filled with NaN, the inputs of the next call are copied in, memory of their sizes is filled
              with NaN and freed, and the recording runs

So an output that a replay does not write, and memory that the recording uses though it was given back, show.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from ssmspec_ref.contract import Capture, Launch

from ...errors import GraphError

NEVER = -77
"""What whole numbers hold before a replay writes them."""
SHOWN = 60
"""Characters of a value to show."""


def leaves(value: Any, place: str = "inputs") -> Iterator[tuple[str, Any]]:
    """Every array, number and text in tuples, lists, dicts and records, with its place."""
    if isinstance(value, dict | SimpleNamespace):
        parts = value if isinstance(value, dict) else vars(value)
        for name, part in parts.items():
            yield from leaves(part, f"{place}[{name!r}]")
    elif isinstance(value, tuple | list):
        for number, part in enumerate(value):
            yield from leaves(part, f"{place}[{number}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from leaves(getattr(value, field.name), f"{place}.{field.name}")
    else:
        yield place, value


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of PyTorch, which need not be installed."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "untyped_storage")


def arrays(value: Any) -> list[Any]:
    return [leaf for _, leaf in leaves(value) if isinstance(leaf, np.ndarray) or is_tensor(leaf)]


def copied(array: Any) -> Any:
    return array.copy() if isinstance(array, np.ndarray) else array.clone()


def write(old: Any, new: Any) -> None:
    """Copy an array into another one; into itself nothing."""
    if old is not new:
        old[...] = new


def memory(array: Any) -> int:
    """Where the memory of an array begins, which its views share."""
    if isinstance(array, np.ndarray):
        while isinstance(array.base, np.ndarray):
            array = array.base
        return int(array.ctypes.data)
    return int(array.untyped_storage().data_ptr())


def blank(array: Any) -> None:
    """Fill an array with what no operation computes."""
    kind = array.dtype.kind if isinstance(array, np.ndarray) else "f" if array.is_floating_point() else str(array.dtype)
    array[...] = float("nan") if kind == "f" else True if kind in ("b", "torch.bool") else NEVER if signed(array) else 77


def signed(array: Any) -> bool:
    return str(array.dtype).rpartition(".")[2].startswith("int")


def stir(given: list[Any]) -> None:
    """Leave NaN in freed memory of the sizes of some arrays."""
    held = [copied(a) for a in given for _ in range(2)]
    for a in held:
        blank(a)
    del held


@dataclass
class Captured:
    """A recorded launch, its outputs, and what replays it."""

    launch: Launch
    outputs: Any
    replay: Callable[[], None]


class Replays:
    """The launches of one operation: of each method and each set of shapes the first is captured, and replayed for all."""

    def __init__(self, capture: Capture | None) -> None:
        self.capture, self.kept = capture, dict[Any, Captured]()

    def __call__(self, method: str, made: Any) -> Any:
        """What a launch returns, replayed with its inputs; the result of a method that is no launch as it is.

        Raises: GraphError for a number on the host that is another one than in the capture.
        """
        if not isinstance(made, Launch):
            return made
        key = method, tuple((place, tuple(a.shape), str(a.dtype)) for place, a in leaves(made.inputs) if arrays(a))
        held = self.kept.get(key) or self.kept.setdefault(key, captured(self.capture, made))
        same_host(held.launch, made)
        used = {memory(a) for a in arrays(held.launch.inputs)}
        for output in arrays(held.outputs):
            if memory(output) not in used:
                blank(output)
        given = arrays(made.inputs)
        for old, new in zip(arrays(held.launch.inputs), given, strict=True):
            write(old, new)
        stir(given)
        held.replay()
        return held.launch.read(held.outputs)


def captured(capture: Capture | None, made: Launch) -> Captured:
    """Record a launch; its inputs hold afterwards what they held before."""
    given = arrays(made.inputs)
    before = [copied(a) for a in given]
    outputs, replay = (capture or recorder(given))(made.run)
    for old, new in zip(given, before, strict=True):
        write(old, new)
    return Captured(made, outputs, replay)


def recorder(given: list[Any]) -> Capture:
    """What records a launch with these inputs. Raises: GraphError for arrays whose launches the suite cannot record."""
    tensors = [a for a in given if is_tensor(a)]
    if not tensors:
        raise GraphError(
            "the inputs of the launch are no tensors of PyTorch, so the suite cannot capture it; give Graph(prepare, capture)"
        )
    from .tape import TapeRecorder

    return partial(on_gpu, tensors[0].device) if tensors[0].is_cuda else TapeRecorder()


def on_gpu(device: Any, run: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
    """A CUDA graph, after runs on another stream, which compile and allocate what is kept."""
    import torch

    from .tape import WARM

    with torch.cuda.device(device):
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with uncollected(), torch.cuda.graph(graph):
            outputs = run()
    return outputs, graph.replay


@contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's garbage collector: freeing a graph would abort the recording of another."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def same_host(first: Launch, other: Launch) -> None:
    """Raises: GraphError if anything but the contents of arrays differs from the capture's."""
    for (place, one), (_, new) in zip(leaves(first.inputs), leaves(other.inputs), strict=True):
        if not arrays(one) and one != new:
            raise GraphError(
                f"{place} of the launch is {str(one)[:SHOWN]} in the capture and {str(new)[:SHOWN]} in a replay; a graph "
                "keeps the first: put it into an array that the launch reads, or declare why the operation is `uncaptured`"
            )
