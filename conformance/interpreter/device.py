"""Where an implementation computes: a device, or Triton's interpreter on the CPU."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ssmspec_ref.options.extras import installing

from ..device import observed
from ..errors import AdapterUnavailable

INTERPRETER = "interpreter"


@contextmanager
def placed(device: str) -> Iterator[str]:
    """The device to pass to adapters. "interpreter" runs Triton kernels in the corrected interpreter, on CPU tensors.

    Raises: AdapterUnavailable for a device that does not exist or that this machine lacks, or if triton was imported already,
    because it chooses the interpreter at import.
    """
    observed.check(device)
    if device != INTERPRETER:
        yield device
        return
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise AdapterUnavailable("triton was imported before the interpreter was chosen; set TRITON_INTERPRET=1 at the start")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        from .bounds import bounded
        from .faithful import faithful
    except ImportError as error:
        told = f"triton is not installed here; to interpret kernels, {installing('kernels')}"
        raise AdapterUnavailable(told) from error
    with faithful(), bounded(), _counted():
        yield "cpu"


@contextmanager
def _counted() -> Iterator[None]:
    """Count the kernels that the interpreter runs."""
    from triton.runtime.interpreter import GridExecutor

    run = GridExecutor.__call__

    def counted(self: Any, *given: Any, **named: Any) -> Any:
        observed.launches += 1
        return run(self, *given, **named)

    GridExecutor.__call__ = counted
    try:
        yield
    finally:
        GridExecutor.__call__ = run
