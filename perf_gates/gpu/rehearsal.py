"""Every measurement without a device, at its real shapes: `python -m perf_gates.gpu --rehearse`.

Tensors of the device become meta tensors that say they lie on it, and launches are recorded instead of made: launchers check
all that they are given and choose their tiles, as on an H200. Nothing is computed, compared or timed.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from perf_gates.capture import Launch, launches_of
from perf_gates.clock import compiling
from perf_gates.on_device import on_device

from .steps import Timing

H200 = 90
"""Its architecture."""


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
            with on_device(H200), compiling():
                launches = launches_of(call)
        except Exception as error:
            error.add_note(f"{part}: {case}")
            raise
        yield timings, launches
