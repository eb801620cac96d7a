"""The GitHub Action without GitHub: its shell steps run in an empty repository, with the wheel built from this tree."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from .test_walks import OURS, clone

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
EXAMPLE = (ROOT / "docs" / "examples" / "conformance.yml").read_text(encoding="utf-8")
STEPS = ACTION["runs"]["steps"]
OUTPUT = re.compile(r"\$\{\{ (.+?) \}\}")


@dataclass
class Done:
    code: int
    said: str
    uploads: list[dict[str, str]]
    outputs: dict[str, str]
    summary: str


def value(expression: str, names: dict[str, str]) -> str:
    """Of the few expressions that the action uses: names, and the first of several that is not empty."""
    return next((names[name] for name in expression.split(" || ") if names.get(name)), "")


def run(folder: Path, path: str, **inputs: str) -> Done:
    """The steps in order, as a runner takes them: bash with -e and pipefail; after a failure only what runs always."""
    assert set(inputs) <= set(ACTION["inputs"])
    names = {f"inputs.{name}": str(inputs.get(name, one["default"])) for name, one in ACTION["inputs"].items()}
    names |= {"github.action_path": str(ROOT), "github.job": "kernels", "strategy.job-index": "2"}
    files = {name: folder.parent / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    code, said, uploads = 0, "", list[dict[str, str]]()
    files["GITHUB_STEP_SUMMARY"].write_text("")
    for step in STEPS:
        filled = {key: OUTPUT.sub(lambda found: value(found[1], names), text) for key, text in step.get("env", {}).items()}
        always = "always()" in step.get("if", "")
        if (code and not always) or ("artifact" in step.get("if", "") and not names["inputs.artifact"]):
            continue
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"])
            uploads.append(
                {key: OUTPUT.sub(lambda found: value(found[1], names), text) for key, text in step["with"].items()}
            )
            continue
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "what a user gives is data in the environment, never a part of the script"
        files["GITHUB_OUTPUT"].write_text("")
        environment = {name: text for name, text in os.environ.items() if name not in OURS}
        environment |= {"PATH": path, **{name: str(file) for name, file in files.items()}, **filled}
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        said, code = said + done.stdout + done.stderr, code or done.returncode
        for line in files["GITHUB_OUTPUT"].read_text().splitlines():
            name, _, text = line.partition("=")
            names[f"steps.{step['id']}.outputs.{name}"] = text
    outputs = {
        name: OUTPUT.sub(lambda found: value(found[1], names), one["value"]) for name, one in ACTION["outputs"].items()
    }
    return Done(code, said, uploads, outputs, files["GITHUB_STEP_SUMMARY"].read_text())


@pytest.mark.timeout(1200)
def test_the_action_judges_an_adapter_in_an_empty_repository(tmp_path: Path) -> None:
    """Green, red, one that does not load, and nothing to judge; the wheel is installed by the action's own step."""
    clone(tmp_path / "clone")
    yours, wheels, home = tmp_path / "yours", tmp_path / "wheels", tmp_path / "environment"
    subprocess.run(["git", "init", "-q", str(yours)], check=True)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(wheels), str(tmp_path / "clone")]
    subprocess.run(build, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    (wheel,), path = wheels.glob("*.whl"), os.pathsep.join([str(home / "bin"), os.environ["PATH"]])
    adapter = yours / "my_kernels.py"

    first = run(yours, path, source=str(wheel), adapter="my_kernels:adapter", options="--tier smoke")
    assert (first.code, first.outputs["exit-code"]) == (2, "2"), first.said
    assert "my_kernels" in first.said

    subprocess.run([str(home / "bin" / "ssmspec"), "conform", "init", str(adapter)], check=True, capture_output=True)
    options = "--tier smoke --subject '*' --seed 3"
    green = run(yours, path, source=str(wheel), adapter="my_kernels:adapter", options=options)
    assert (green.code, green.outputs) == (0, {"exit-code": "0", "report": "conformance-report"}), green.said
    assert green.uploads == [
        {"name": "ssmspec-report-kernels-2", "path": "conformance-report", "if-no-files-found": "ignore"}
    ]
    assert "::error" not in green.said
    assert "tested against the float64 reference" in green.summary
    for name in ("badge.svg", "junit.xml", "report.html", "report.jsonl"):
        assert (yours / "conformance-report" / name).stat().st_size

    adapter.write_text(adapter.read_text().replace("np.exp(dt * A)", "np.exp(-dt * A)"))
    red = run(yours, path, source=str(wheel), adapter="my_kernels:adapter", options=options, report="a report", artifact="")
    assert (red.code, red.outputs["exit-code"], red.uploads) == (1, "1", []), red.said
    assert (yours / "a report" / "badge.svg").stat().st_size
    assert "::error file=my_kernels.py" in red.said
    assert "as if" in red.summary

    for wrong in ({}, {"adapter": "a", "engine": "b"}):
        found = run(yours, path, source=str(wheel), **wrong)
        assert found.code == 2
        assert "give one of the inputs adapter and engine" in found.said
    assert run(yours, path, source=str(wheel), adapter="a", options="--tier 'smoke").code == 1, "a quote that is not closed"
    assert run(yours, path, source=str(tmp_path / "no.whl"), adapter="a").code == 1


def stand_in(home: Path, line: str) -> tuple[Path, str]:
    """A folder, and a path on which ssmspec does this, and python installs nothing."""
    for name, does in (("ssmspec", line), ("python", f'[ "$2" = pip ] || exec {sys.executable} "$@"')):
        (home / name).write_text(f"#!/usr/bin/env bash\n{does}\n")
        (home / name).chmod(0o755)
    (home / "yours").mkdir()
    return home / "yours", os.pathsep.join([str(home), os.environ["PATH"]])


def test_an_engine_gets_its_options_and_a_report_in_the_folder(tmp_path: Path) -> None:
    """With a command in place of ssmspec that says how it was called."""
    folder, path = stand_in(tmp_path, 'printf "<%s>" "$@"; exit 3')
    found = run(folder, path, engine="program:my engine", options="--model 'a b' --tier smoke")
    assert found.said == (
        "<conform><engine><--engine><program:my engine><--report><conformance-report/engine-report.json>"
        "<--model><a b><--tier><smoke>"
    )
    assert (found.code, found.outputs["exit-code"], len(found.uploads)) == (3, "3", 1)


def test_what_is_given_is_no_script(tmp_path: Path) -> None:
    folder, path = stand_in(tmp_path, "exit 0")
    attack = '$(touch here) `touch here` "; touch here; #'
    run(folder, path, adapter=attack, options="'" + attack.replace("'", "") + "'", report=attack, extras=attack)
    assert not (folder / "here").exists()


def test_the_example_uses_the_action_as_it_is() -> None:
    job: Any = yaml.safe_load(EXAMPLE)["jobs"]["ssmspec"]
    (step,) = (one for one in job["steps"] if "ssmspec@" in one.get("uses", ""))
    assert set(step["with"]) <= set(ACTION["inputs"])
    page = (ROOT / "docs" / "how-to" / "ci.md").read_text(encoding="utf-8")
    listed = {name for line in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)}
    assert listed >= set(ACTION["inputs"])


def test_every_workflow_of_a_page_is_a_file_that_can_be_copied() -> None:
    """A block of YAML with jobs is one of `docs/examples`, and each of these is on a page."""
    pages = "".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "how-to").glob("*.md")))
    shown = [block for block in re.findall(r"```yaml\n(.*?)```", pages, re.DOTALL) if "jobs:" in block or "steps:" in block]
    files = [file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "examples").glob("*.yml")]
    assert sorted(shown) == sorted(files)
    for text in files:
        assert all(job["steps"] for job in yaml.safe_load(text)["jobs"].values())
