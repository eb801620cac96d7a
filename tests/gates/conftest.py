"""Tests that need the compiler run in another process where this one has Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "compiler: needs Triton's compiler, which a process with the interpreter has not")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Triton chooses when it is imported, so the test runs again, alone."""
    if pyfuncitem.get_closest_marker("compiler") is None or os.environ.get("TRITON_INTERPRET") != "1":
        return None
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:]
    return True
