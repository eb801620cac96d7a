"""What all tests share."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))  # perf_gates is in no wheel; what is installed comes first


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """A process that a shell started in the background ignores SIGINT; here it is heeded."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
