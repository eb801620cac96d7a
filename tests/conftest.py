"""What all tests share."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))  # perf_gates is in no wheel; what is installed comes first

from tests.rotation import (  # noqa: F401  the hooks that choose among slow tests
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_report_header,
)


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders that a command of one test puts on the path are not on that of the next."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """A process that a shell started in the background ignores SIGINT; here it is heeded."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
