"""One line of the README goes from a fresh clone to the first report."""

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer

from conformance.main import build
from conformance.run.load import load
from conformance.run.plan import Selection, plan

from .picture import drawn
from .test_readme import COMMANDS, FROM_NOTHING, README, ROOT, told

HIDDEN = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONSAFEPATH", "PIP_CONSTRAINT")
"""What a stranger's shell has not set."""


def words() -> list[list[str]]:
    """The three commands of the line."""
    return [shlex.split(part) for part in FROM_NOTHING.split(" && ")]


def test_the_line_makes_an_environment_installs_by_the_constraints_and_tests() -> None:
    venv, install, run = words()
    assert venv == ["python3", "-m", "venv", ".venv"]
    assert install == [".venv/bin/pip", "install", "-q", "-c", "constraints.txt", ".[transformers]"]
    assert run[:3] == [".venv/bin/ssmspec", "conform", "run"]
    (tests,) = [command for command in COMMANDS if command.endswith("tox run")]
    between = README.split(FROM_NOTHING)[1].split(tests)[0]
    assert "\n#" not in between, "the line that runs the tests is in the same section"


def test_what_it_installs_is_pinned() -> None:
    """Every package of the extra and of the core: so that everybody gets what was tried."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    (extra,) = re.findall(r"\[(\w+)\]", FROM_NOTHING)
    asked, needed = [*project["dependencies"], f"ssmspec[{extra}]"], set[str]()
    while asked:
        requirement = asked.pop()
        name, more = re.fullmatch(r"([\w-]+)(?:\[([\w,]+)\])?.*", requirement).groups()  # type: ignore[union-attr]
        if name == "ssmspec":
            asked += [one for part in more.split(",") for one in extras[part]]
        else:
            needed.add(name.lower())
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {line.partition("==")[0].lower(): line.partition("==")[2] for line in lines if "==" in line}
    assert {"numpy", "torch", "transformers"} <= needed <= pins.keys()
    assert f"torch {pins['torch']}" in README


def test_the_command_parses_and_its_pattern_names_subjects() -> None:
    *_, run = words()
    command = typer.main.get_command(build())
    for name in run[1:3]:
        command = command.commands[name]  # type: ignore[attr-defined]
    given = command.make_context(run[2], run[3:]).params
    (adapter,) = given["adapter"]
    jobs, _ = plan({adapter: load(adapter)}, Selection(given["tier"], given["subject"]))
    assert {job.subject.name for job in jobs} == {"qwen3_next", "qwen3_5", "qwen3_5_moe"}
    assert len(jobs) == 72


def test_the_readme_names_no_host_of_packages() -> None:
    """An address may be another for who reads it; the line uses the index that their pip is set to."""
    assert re.findall(r"(?:pypi|pythonhosted|pytorch)\.org|index-url", README) == []


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_line_runs_in_a_fresh_clone(tmp_path: Path) -> None:
    """A minute and more to download and install 250 MB; then the matrix is the picture, and the clone holds nothing new."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    assert f"\n    {FROM_NOTHING}\n" in (clone / "README.md").read_text(encoding="utf-8"), "commit the README first"
    environment = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    line = ["bash", "-euo", "pipefail", "-c", FROM_NOTHING]
    done = subprocess.run(line, cwd=clone, env=environment, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    shown = (clone / "docs" / "pictures" / "qwen3.svg").read_text(encoding="utf-8")
    assert told(drawn(clone / "conformance-report")) == told(shown)
    status = ["git", "status", "--porcelain"]
    assert subprocess.run(status, cwd=clone, capture_output=True, text=True, check=True).stdout == ""
