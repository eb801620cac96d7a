"""A plugin of pytest: which test failed first, by what, and which runs now. Tests that plant faults are left out."""

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "campaign", phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate), database=None, deadline=None
)  # a failure is not made smaller
hypothesis.settings.load_profile("campaign")


def _say(**what: Any) -> None:
    with Path(os.environ["SSMSPEC_CAMPAIGN_REPORT"]).open("a") as file:
        file.write(json.dumps(what) + "\n")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that change a source: they look for a text in it."""
    import ssmspec_kernels
    from tests.kernels import device
    from tests.kernels.mutants import mutated

    _say(event="collected", package=str(Path(str(ssmspec_kernels.__file__)).parent))
    plants = [i for i in items if isinstance(i, pytest.Function) and device.reaches(i.function, (mutated,))]
    config.hook.pytest_deselected(items=plants)
    items[:] = [i for i in items if i not in plants]


def pytest_runtest_logstart(nodeid: str) -> None:
    _say(event="start", test=nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    report = yield
    if report.failed and call.excinfo is not None:
        error = call.excinfo.type
        names = [f"{c.__module__}.{c.__name__}" for c in error.__mro__]
        where = [Path(e.path).name for e in call.excinfo.traceback]
        _say(event="failed", test=item.nodeid, error=names[0], bases=names, where=where, text=str(call.excinfo.value)[:300])
    elif call.when == "call" and report.passed:
        _say(event="passed", test=item.nodeid, seconds=call.duration)
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _say(event="no import", test=report.nodeid, text=str(report.longrepr)[-300:])
