"""These tests run in Triton's interpreter, which is chosen when triton is imported, or on a GPU (`tests.kernels.device`)."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


NO_GPU = "needs no GPU: counts, compiles or reads sources"
WATCHES = "watches every memory access, which only the interpreter shows"
PLANTS = "plants a fault, which on a GPU could write to what is not the test's"


THIRD = 3
"""One of so many planted faults of a test runs in CI, the others nightly."""


def leave_planted_faults_to_the_night(items: list[pytest.Item]) -> None:
    """Of each test that plants faults by its parameters, every third stays in CI, the first among them."""
    met = Counter[str]()
    for item in items:
        name = item.nodeid.partition("[")[0]
        if "planted" in name.rpartition("::")[2] and name != item.nodeid:
            if met[name] % THIRD:
                item.add_marker(pytest.mark.nightly)
            met[name] += 1


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs nightly, what watches the memory, and what a planted fault could write to, each with its reason."""
    leave_planted_faults_to_the_night([item for item in items if item.path.is_relative_to(Path(__file__).parent)])
    if not device.COMPILED:
        return
    from conformance.interpreter.memory import watch
    from tests.kernels.mutants import mutated

    for item in items:
        if isinstance(item, pytest.Function) and not item.get_closest_marker("interpreter"):
            given = item.callspec.params.values() if hasattr(item, "callspec") else ()
            for wanted, why in ((watch, WATCHES), (mutated, PLANTS)):
                if any(device.reaches(f, (wanted,)) for f in (item.function, *given)):
                    item.add_marker(pytest.mark.interpreter(why))
                    break


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How many tests are skipped on a GPU, by reason."""
    reports = terminalreporter.stats.get("skipped", [])
    told = Counter(str(r.longrepr[-1]).removeprefix("Skipped: ") for r in reports if isinstance(r.longrepr, tuple))
    if device.COMPILED and told:
        terminalreporter.section("skipped on a GPU, where the interpreter runs them on any machine")
        for why, count in told.most_common():
            terminalreporter.write_line(f"{count}: {why}")


@pytest.fixture(autouse=True)
def placed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every kernel in the repaired interpreter, or on the GPU."""
    if device.COMPILED:
        if marked := request.node.get_closest_marker("interpreter"):
            pytest.skip(marked.args[0] if marked.args else NO_GPU)
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
