"""These tests need Triton's interpreter, which is chosen when triton is imported."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))  # perf_gates is in no wheel; what is installed comes first

if "triton" not in sys.modules:
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    """Run every kernel in the repaired interpreter."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.fail("triton was imported before TRITON_INTERPRET=1 was set; run `tox run -e kernels`, or these tests alone")
    from conformance.interpreter.faithful import faithful

    with faithful():
        yield
