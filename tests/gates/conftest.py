"""Tests that need the compiler run in another process where this one has Triton's interpreter."""

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "compiler: needs Triton's compiler, which a process with the interpreter has not")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Triton chooses when it is imported, so the test runs again, alone."""
    if pyfuncitem.get_closest_marker("compiler") is None or os.environ.get("TRITON_INTERPRET") != "1":
        return None
    from .gates_results import pytest_said

    done = pytest_said(pyfuncitem.nodeid, without="TRITON_INTERPRET")
    assert done.returncode == 0, done.stdout[-4000:]
    return True
