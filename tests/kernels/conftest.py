"""These tests run in Triton's interpreter, which is chosen when triton is imported, or on a GPU (`tests.kernels.device`)."""

import os
import sys
from collections.abc import Iterator

import pytest

from tests.kernels import device

if device.COMPILED:
    device.place()
elif "triton" not in sys.modules:
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kernel-table", action="store_true", help="end with a table of all kernels; fail without one's figures"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "interpreter: counts bytes, plants a fault or needs no GPU; skipped where kernels are compiled"
    )
    if config.getoption("--kernel-table"):
        from tests.kernels.kernel_table import Recorder

        recorder = Recorder()
        recorder.install()
        config.pluginmanager.register(recorder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what watches the memory, which only the interpreter shows, and what a planted fault could write to."""
    if not device.COMPILED:
        return
    from conformance.interpreter.memory import watch
    from tests.kernels.mutants import mutated

    for item in items:
        if isinstance(item, pytest.Function):
            given = item.callspec.params.values() if hasattr(item, "callspec") else ()
            if any(device.reaches(f, (watch, mutated)) for f in (item.function, *given)):
                item.add_marker("interpreter")


@pytest.fixture(autouse=True)
def placed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every kernel in the repaired interpreter, or on the GPU."""
    if device.COMPILED:
        if request.node.get_closest_marker("interpreter"):
            pytest.skip("counts bytes, plants a fault, or needs no GPU")
        yield
        _usable()
        _large_tensors_are_freed()
        return
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.fail("triton was imported before TRITON_INTERPRET=1 was set; run `tox run -e kernels`, or these tests alone")
    from conformance.interpreter.faithful import faithful

    with faithful():
        yield


def _usable() -> None:
    """A kernel that failed on the GPU leaves the process without it; a worker of pytest-xdist is replaced, a run ends."""
    import torch

    try:
        torch.zeros(1).item()
    except RuntimeError as error:
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(70)
        pytest.exit(f"the GPU cannot be used after this test: {error}", returncode=70)


def _large_tensors_are_freed() -> None:
    """The memory of those that the test held goes back to the GPU, and another process may take as much."""
    if device.LARGE.is_locked:
        import torch

        torch.cuda.empty_cache()
        device.LARGE.release(force=True)
