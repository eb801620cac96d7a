"""Where an implementation computes: a device of its own, or Triton's interpreter on the CPU."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import AdapterUnavailable

INTERPRETER = "interpreter"


@contextmanager
def placed(device: str) -> Iterator[str]:
    """The device that adapters are told. "interpreter" runs Triton kernels in the repaired interpreter, on CPU tensors.

    Raises: AdapterUnavailable if triton was imported before: it chooses the interpreter when it is imported.
    """
    if device != INTERPRETER:
        yield device
        return
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise AdapterUnavailable("triton was imported before the interpreter was chosen; set TRITON_INTERPRET=1 at the start")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        from .faithful import faithful
    except ImportError as error:
        raise AdapterUnavailable(
            "triton is not installed here; to interpret kernels: pip install 'ssmspec[kernels]'"
        ) from error
    with faithful():
        yield "cpu"
