"""Every measurement without a device, at its real shapes: `python -m perf_gates.gpu --rehearse`.

Tensors of the device become meta tensors that report its type, and launches are recorded instead of made: launchers check
all of their arguments and choose their tiles, as on an H200. Nothing is computed, compared or timed.
"""

from collections.abc import Iterator
from typing import Any

from perf_gates.gpu.clock import compiling
from perf_gates.static.capture import Launch, launches_of
from perf_gates.static.on_device import on_device

from .compilation import module
from .kernels.steps import Timing

H200 = 90
"""The simulated architecture."""


def rehearse(part: str) -> Iterator[tuple[list[Timing], list[Launch]]]:
    """What each case of a part would time, and its launches.

    Raises: any error of a case, with a note of the case's name; RuntimeError in Triton's interpreter.
    """
    measured = module(part)
    for case in measured.cases():
        timings: list[Timing] = []

        def call(case: tuple[Any, ...] = case, timings: list[Timing] = timings) -> None:
            timings.extend(measured.timings(*case))

        try:
            with on_device(H200), compiling():
                launches = launches_of(call)
        except Exception as error:
            error.add_note(f"{part}: {case}")
            raise
        yield timings, launches
