"""A pytest plugin: every case of an adapter is a test.

    pytest --ssmspec-adapter my_kernels:adapter --ssmspec-tier smoke --ssmspec-report conformance-report

or, in pytest's configuration file,

    ssmspec_adapter = my_kernels:adapter

or adapter in the table [tool.ssmspec] of pyproject.toml, and then plain `pytest`. Without an adapter nothing is collected,
and only this module is imported. Cases run if no path is given; if files are given, they run only if an id names them:
`pytest tests/test_own.py ssmspec::mine`. A case that fails or stays unknown is a failed test; a listed failure
(--ssmspec-known) is an expected failure (xfail). Inapplicable operations are not tests; they are listed at the end with their
reasons. With pytest-xdist the workers run the cases, and the controller writes the report.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

OPTIONS = {
    "adapter": "An adapter that ships with ssmspec, or package.module:factory. May be repeated.",
    "tier": "smoke, standard (default) or deep.",
    "subject": "Only these subjects; a pattern such as 'qwen3*'.",
    "operation": "Only these operations; a pattern such as 'ssd.*'.",
    "device": "Device of the implementation: cpu, cuda, cuda:1, or interpreter (Triton's).",
    "known": "List of known failures, instead of the one that ships.",
    "explain": "What to explain of a failure: none, quick (its smallest case) or full (also the cause, the default).",
    "report": "Folder for the report: JSON lines, an HTML page, JUnit XML and a badge.",
}
REQUIRED = "Exit with 4 if no case of the suite was run."
DEFAULTS = {"tier": "standard", "subject": "*", "operation": "*", "device": "cpu", "explain": "full"}
PATHS = ("known", "report")
"""Options that are paths; in the configuration file they are relative to that file."""
ID = re.compile(r"(\.\./)*ssmspec::")
"""The prefix of an id; outside the root folder pytest prints it like a path."""
SETTLED: pytest.StashKey[dict[str, Any]] = pytest.StashKey()
MARKER = "ssmspec(adapter, subject, operation, family): a case of the conformance suite"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ssmspec", "conformance of decode kernels (ssmspec)")
    for name, said in OPTIONS.items():
        several = name == "adapter"
        group.addoption(f"--ssmspec-{name}", action="append" if several else "store", dest=f"ssmspec_{name}", help=said)
        if several:
            parser.addini(f"ssmspec_{name}", said, type="args", default=[])
        else:
            parser.addini(f"ssmspec_{name}", said, type="string", default="")
    parser.addini("ssmspec_required", REQUIRED, type="bool", default=None)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    ours = [word for word in config.args if ID.match(word)]
    config.args[:] = [word for word in config.args if word not in ours]
    from_xdist = getattr(config, "workerinput", {})
    config.stash[SETTLED] = settled = from_xdist.get("ssmspec") or settle(config, ours)
    if settled["ids"] and not settled["adapter"]:
        raise pytest.UsageError(
            f"{settled['ids'][0]} is a case of the conformance suite, and needs an adapter: --ssmspec-adapter "
            "package.module:factory, or ssmspec_adapter in the configuration file"
        )
    if settled["adapter"]:
        from .pytest_cases.session import Run

        config.pluginmanager.register(Run(config, settled), "ssmspec-run")


def settle(config: pytest.Config, ours: list[str]) -> dict[str, Any]:
    """The settings of this session: every option by its name; "ids", the cases given; "own", the options given on the command
    line; "unnamed", whether paths are given but no case."""
    shared = _shared(config.rootpath)
    settled: dict[str, Any] = {name: _option(config, name, shared) for name in OPTIONS}
    required = config.getini("ssmspec_required")
    settled["required"] = shared.get("required", False) if required is None else required
    settled["ids"] = [ID.sub("ssmspec::", word) for word in ours]
    settled["given"] = [f"ssmspec_{name}" for name in OPTIONS if settled[name] and settled[name] != DEFAULTS.get(name)]
    settled["own"] = [name for name in OPTIONS if config.getoption(f"ssmspec_{name}")]
    named = config.args_source is pytest.Config.ArgsSource.ARGS and bool(config.args)
    settled["unnamed"] = named and not ours
    return settled


def _shared(root: Path) -> dict[str, Any]:
    """The table [tool.ssmspec] of pyproject.toml. Nothing of ours is imported if no file there names it."""
    files = [folder / "pyproject.toml" for folder in (root, *root.parents)]
    if not any(file.is_file() and b"ssmspec" in file.read_bytes() for file in files):
        return {}
    from ssmspec_ref.errors import OptionError

    from .settings import read_settings

    try:
        return read_settings(root)
    except OptionError as error:
        raise pytest.UsageError(str(error)) from error


def _option(config: pytest.Config, name: str, shared: dict[str, Any]) -> Any:
    """The value on the command line, else in pytest's configuration file, else in pyproject.toml, else the default."""
    given = config.getoption(f"ssmspec_{name}")
    if not given:
        given = config.getini(f"ssmspec_{name}") or shared.get(name)
        if given and name in PATHS:
            given = str(config.rootpath / given)
    return given or DEFAULTS.get(name)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the settings to a worker of pytest-xdist."""
    node.workerinput["ssmspec"] = node.config.stash[SETTLED]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """End with 4 if a case is required and none was run."""
    config = session.config
    settled = config.stash[SETTLED]
    green = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if not settled["required"] or not green or config.option.collectonly or hasattr(config, "workerinput"):
        return
    run = config.pluginmanager.get_plugin("ssmspec-run")
    if run is None or not run.results:
        settled["none"] = True
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say why no case ran although options are given. The adapters are not loaded for it, so the cases are not counted."""
    settled = config.stash[SETTLED]
    said = ""
    if settled["adapter"] and settled["unnamed"]:
        said = f"no case of {', '.join(settled['adapter'])} was run, because paths were given; add ssmspec:: to run them too"
    elif settled["given"] and not settled["adapter"]:
        said = f"{', '.join(settled['given'])} given, but no adapter, so no case was run; give ssmspec_adapter"
    if settled.get("none"):
        said = f"ssmspec_required is set, but no case of the suite was run{f': {said}' if said else ''}"
    if said:
        terminalreporter.write_line(f"ssmspec: {said}", **{"red" if settled.get("none") else "yellow": True})
