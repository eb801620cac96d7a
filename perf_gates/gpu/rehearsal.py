"""Every measurement without a device, at its real shapes: `python -m perf_gates.gpu --rehearse`.

Tensors of the device become meta tensors that say they lie on it, and launches are recorded instead of made: launchers check
all that they are given and choose their tiles, as on an H200. Nothing is computed, compared or timed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from perf_gates.capture import Launch, launches_of
from perf_gates.clock import compiling

from .steps import Timing


class OnMeta(TorchFunctionMode):
    """Tensors of the device have no data; read on the host they are zeros, and as a condition they hold."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            kwargs |= {"device": "meta"} | ({"generator": None} if "generator" in kwargs else {})
        if func == Tensor.device.__get__:
            return torch.device("cuda", 0)
        if func == Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        if func is Tensor.cuda:
            return args[0].to("meta")
        if func is Tensor.cpu:
            return torch.zeros(args[0].shape, dtype=args[0].dtype) if args[0].is_meta else args[0]
        if func in (Tensor.__bool__, torch.equal) and args[0].is_meta:
            return True
        return func(*args, **kwargs)


@contextmanager
def on_h200() -> Iterator[None]:
    """In the block tensors are those of an H200, without data."""
    asked, torch.cuda.get_device_capability = torch.cuda.get_device_capability, lambda device=None: (9, 0)
    try:
        with OnMeta():
            yield
    finally:
        torch.cuda.get_device_capability = asked


def rehearse(part: str) -> Iterator[tuple[list[Timing], list[Launch]]]:
    """What each case of a part would time, and its launches.

    Raises: whatever a case raises, a note of which one it was added; RuntimeError in Triton's interpreter.
    """
    module = import_module(f"perf_gates.gpu.{part}")
    for case in module.cases():
        timings: list[Timing] = []

        def call(case: tuple[Any, ...] = case, timings: list[Timing] = timings) -> None:
            timings.extend(module.timings(*case))

        try:
            with on_h200(), compiling():
                launches = launches_of(call)
        except Exception as error:
            error.add_note(f"{part}: {case}")
            raise
        yield timings, launches
