"""The workflow of the GPU gates can be green, and whoever may start it runs no command of their own on the runner."""

import configparser
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from conformance.adapters import unpack
from conformance.errors import UnpackError
from conformance.main import module_command, run_command
from perf_gates.gpu import unpack_peers
from perf_gates.gpu.kernels import peers
from perf_gates.gpu_gates import __main__ as command
from perf_gates.gpu_gates.parts import PARTS
from perf_gates.ratchet.peers import DISTRIBUTIONS, PEERS
from ssmspec_ref.options.typed import repeated

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / ".github/workflows/gpu-gates.yml").read_text()
HELD: dict[str, Any] = yaml.safe_load(TEXT)
(JOB,) = HELD["jobs"].values()
RUNS = [step["run"] for step in JOB["steps"] if "run" in step]
TOX = configparser.RawConfigParser()
TOX.read(ROOT / "tox.ini")


def words(environment: str) -> list[str]:
    """What the workflow gives to an environment of tox, with all parts."""
    (run,) = [run for run in RUNS if f"tox run -e {environment} " in run]
    return shlex.split(run.replace("${PART:+--part $PART}", "--part core engine").partition(" -- ")[2])


def test_the_workflow_has_the_whole_history() -> None:
    (checkout,) = [step["with"] for step in JOB["steps"] if step.get("uses", "").startswith("actions/checkout@")]
    assert checkout["fetch-depth"] == 0


def test_the_peers_that_are_unpacked_are_given_to_the_gates() -> None:
    runs = [re.findall(r"tox run -e (\S+)", run) for run in RUNS]
    assert [name for names in runs for name in names] == ["gpu-peers", "gpu-gates"]
    gates = words("gpu-gates")
    assert words("gpu-peers") == ["--into", gates[gates.index("--peers") + 1]]


def test_the_commands_have_the_options_that_the_workflow_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for environment, module in (("gpu-peers", "perf_gates.gpu.unpack_peers"), ("gpu-gates", "perf_gates.gpu_gates")):
        assert TOX[f"testenv:{environment}"]["commands"].startswith(f"python -m {module} {{posargs:--")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".tox" / "peers").mkdir(parents=True)
    gates = typer.main.get_command(module_command(command.main))
    parsed = gates.make_context("gates", repeated([*words("gpu-gates"), "--list"], gates)).params
    assert (parsed["part"], parsed["peers"], parsed["minutes"]) == (["core", "engine"], Path(".tox/peers"), 40.0)
    assert sum(part.expected for part in PARTS) < 60 * parsed["minutes"] < 60 * JOB["timeout-minutes"]
    assert run_command(command.main, [*words("gpu-gates"), "--list"]) == 0
    assert "--into" in words("gpu-peers")


def started(part: str, folder: Path) -> tuple[int, list[list[str]]]:
    """The scripts of the workflow, as the runner executes them, with a `tox` that writes down what it is given."""
    tools = folder / ".venv" / "bin"
    tools.mkdir(parents=True)
    (tools / "tox").write_text('#!/bin/bash\nprintf "%s\\n" "$@" --end-- >> given\n')
    (tools / "tox").chmod(0o755)
    assert JOB["env"] == {"PART": "${{ inputs.part }}"}
    for run in RUNS:
        if "-m venv" in run:
            continue
        done = subprocess.run(
            ["bash", "-e", "-c", run], cwd=folder, env={"PATH": os.environ["PATH"], "PART": part}, timeout=20
        )
        if done.returncode:
            return done.returncode, []
    calls = (folder / "given").read_text().split("--end--\n")
    return 0, [call.splitlines() for call in calls if call]


@pytest.mark.parametrize(
    ("part", "told"), [("", []), ("core", ["--part", "core"]), ("core engine", ["--part", "core", "engine"])]
)
def test_a_part_that_is_given_reaches_the_gates(part: str, told: list[str], tmp_path: Path) -> None:
    code, (made, run) = started(part, tmp_path)
    assert code == 0
    assert made[-2:] == ["--into", ".tox/peers"]
    assert run[run.index("--minutes") + 2 :] == told


@pytest.mark.parametrize(
    "part",
    [
        "core; touch planted",
        "$(touch planted)",
        "`touch planted`",
        "core\ntouch planted",
        "core && touch planted",
        "core --resume other.tar.gz",
        "--report",
        "*",
        "{env:HOME}",
        "core | tee planted",
    ],
)
def test_a_part_that_is_no_name_ends_the_run_before_anything_else(part: str, tmp_path: Path) -> None:
    code, calls = started(part, tmp_path)
    assert (code, calls) == (2, [])
    assert [path.name for path in tmp_path.iterdir()] == [".venv"]


def test_every_part_has_a_name_that_the_workflow_takes() -> None:
    assert [part.name for part in PARTS if not re.fullmatch("[a-z]+", part.name)] == []


# --- the folder of peers ---


def test_the_versions_are_those_that_the_adapters_are_tested_with() -> None:
    tested = " ".join(TOX[f"testenv:peers-{name}"]["commands"] for name in ("fla", "mamba-ssm", "vllm"))
    assert sorted({*re.findall(r"[\w-]+==\S+", tested)}) == sorted(unpack_peers.PINNED)


def test_every_package_that_a_part_times_is_unpacked() -> None:
    timed = {name for part in ("peers", "prefill") for name in PEERS[part]}
    pinned = {requirement.partition("==")[0] for requirement in unpack_peers.PINNED}
    assert [name for name in timed if pinned.isdisjoint(DISTRIBUTIONS.get(name, (name,)))] == []
    assert pinned <= unpack.PARTS.keys()
    parts = [part for name in pinned for part in unpack.PARTS[name]]
    for module in peers.NAMES.values():
        path = module.replace(".", "/")
        assert any(f"{path}/__init__.py".startswith(part.removesuffix("*")) for part in parts), module


def planted(folder: Path, without: str = "") -> None:
    """Modules with the names that are timed, as unpacked."""
    for name, module in peers.NAMES.items():
        path = folder / f"{module.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        if name != without:
            path.write_text("import triton\n")


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a peer puts into the process stays there."""
    kept = {name: found for name, found in sys.modules.items() if name.split(".")[0] not in ("vllm", "fla", "mamba_ssm")}
    monkeypatch.setattr(sys, "modules", kept)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(peers, "_loaded", {})


def test_the_command_unpacks_each_and_imports_what_is_timed(
    tmp_path: Path, apart: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    planted(tmp_path)
    monkeypatch.setattr(unpack_peers, "unpack", lambda requirement, into: asked.append(requirement) or ["a file"])
    assert run_command(unpack_peers.main, ["--into", str(tmp_path)]) == 0
    assert asked == [*unpack_peers.PINNED]
    assert f"{tmp_path} holds every module that is timed" in capsys.readouterr().out


@pytest.mark.parametrize("name", peers.NAMES)
def test_a_folder_that_lacks_a_module_is_no_success(
    name: str, tmp_path: Path, apart: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted(tmp_path, without=name)
    monkeypatch.setattr(unpack_peers, "unpack", lambda requirement, into: [])
    assert run_command(unpack_peers.main, ["--into", str(tmp_path)]) == 2
    assert f"has no {name} that can be imported" in capsys.readouterr().err


def test_what_cannot_be_downloaded_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(requirement: str, into: Path) -> list[str]:
        raise UnpackError(f"pip cannot download {requirement}: no network")

    monkeypatch.setattr(unpack_peers, "unpack", refuse)
    assert run_command(unpack_peers.main, ["--into", str(tmp_path / "peers")]) == 2
    assert "pip cannot download vllm==0.33.0: no network" in capsys.readouterr().err
    assert not (tmp_path / "peers").exists()


def test_a_folder_of_peers_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(command.main, ["--peers", "no/such/folder", "--list"]) == 2
    assert "`python -m perf_gates.gpu.unpack_peers --into no/such/folder` makes it" in capsys.readouterr().err


@pytest.mark.nightly
def test_the_real_folder_holds_the_modules_that_are_timed(tmp_path: Path) -> None:
    """340 MB from the registry; the second call finds everything there."""
    run = ["-m", "perf_gates.gpu.unpack_peers", "--into", str(tmp_path / "peers")]
    for said in ("files written to", "already in"):
        done = subprocess.run([sys.executable, *run], cwd=ROOT, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count(said) == len(unpack_peers.PINNED)
    held = {path.parent.name.partition("-")[0] for path in (tmp_path / "peers").glob("*.dist-info/METADATA")}
    assert held == {"vllm", "fla_core", "einops", "mamba_ssm"}
    size = sum(path.stat().st_size for path in (tmp_path / "peers").rglob("*") if path.is_file())
    assert size < 12e6
