"""Kernels run in the repaired interpreter, which triton chooses when it is imported."""

import os
import sys
from collections.abc import Iterator

import pytest

if "triton" not in sys.modules:
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session", autouse=True)
def interpreted() -> Iterator[None]:
    from conformance.interpreter.device import INTERPRETER, placed

    with placed(INTERPRETER):
        yield
