"""The walks of docs/walks, replayed outside the clone, each within its limit.

Kernel author and CI owner start from nothing: an empty environment in a repository of their own, next to a clone.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WALKS = ROOT / "docs" / "walks"
PARTS = ("ssmspec_ref", "ssmspec_fast", "kernels", "conformance", "property_tests", "perf_gates")
OURS = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONSAFEPATH")


def clone(folder: Path) -> None:
    """What a clone holds that an installation needs."""
    hidden = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=hidden)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, folder)


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def walk(name: str, folder: Path, path: Path | None = None) -> str:
    """Replay a walk in a folder; its output. Fails where a command fails, or where the walk takes longer than it says."""
    script = WALKS / f"{name}.sh"
    limit = re.search(r"Limit: (\d+) seconds", script.read_text(encoding="utf-8"))
    assert limit
    environment = {name: value for name, value in os.environ.items() if name not in OURS} | {"COLUMNS": "200"}
    environment["PATH"] = os.pathsep.join([str(path or Path(sys.executable).parent), environment["PATH"]])
    began = time.monotonic()
    done = subprocess.run(["bash", str(script)], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert time.monotonic() - began < float(limit[1])
    return done.stdout


@pytest.mark.timeout(1200)
def test_kernel_author_and_ci_owner_go_from_nothing_to_red_and_green(tmp_path: Path) -> None:
    clone(tmp_path / "ssmspec")
    yours = tmp_path / "yours"
    yours.mkdir()
    cloned = files(tmp_path / "ssmspec")
    said = walk("kernel-author", yours)
    assert files(tmp_path / "ssmspec") == cloned, "the installation leaves nothing in the clone"
    assert "5/5" in said
    assert "differs   y at row" in said
    torch = subprocess.run([str(yours / ".venv" / "bin" / "python"), "-c", "import torch"], capture_output=True, check=False)
    assert torch.returncode == 1, "the installation takes no torch"
    said = walk("ci-owner", yours)
    assert len(re.findall(r"^\d+ failed", said, re.MULTILINE)) == 3
    assert len(re.findall(r"^\d+ passed", said, re.MULTILINE)) == 2


def test_engine_author_finds_a_bug(tmp_path: Path) -> None:
    said = walk("engine-author", tmp_path)
    assert re.search(r"\s(19|20|21)/\1\s", said)  # 19 of the table, and two that are drawn, which it may hold already
    assert "generate.greedy" in said
    assert "S after window 0 at row 0" in said
    assert re.findall(r"identical to plain decoding: (\d) of (\d) prompts", said) == [
        ("1", "1"),
        ("2", "2"),
        ("1", "1"),
        ("1", "1"),
    ]
    assert "there is no speculation to compare" in said
    accepted = re.findall(r"drafts: (\d+) of \d+ accepted", said)
    assert int(accepted[2]) > 30, "a checkpoint that drafts for itself agrees with itself"


def test_the_readme_installs_as_the_walks_do() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "\n    pip install ../ssmspec\n" in readme
    for name in ("kernel-author", "ci-owner"):
        assert re.search(r"pip install --quiet \.\./ssmspec( |\n)", (WALKS / f"{name}.sh").read_text(encoding="utf-8"))


def test_a_walk_that_fails_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.sh").write_text("# Limit: 9 seconds\nset -e\nfalse\n")
    monkeypatch.setattr(sys.modules[__name__], "WALKS", tmp_path)
    with pytest.raises(AssertionError):
        walk("broken", tmp_path)
