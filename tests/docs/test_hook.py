"""The hook for pre-commit: what it starts passes a right adapter and fails a wrong one, as the page on CI says."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import ROOT, done

(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "how-to" / "ci.md").read_text(encoding="utf-8")


def configured() -> Any:
    """The hook as the page configures it."""
    (block,) = (text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if text.startswith("repos:"))
    ((hook,),) = (repository["hooks"] for repository in yaml.safe_load(block)["repos"])
    return hook


def commit(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """What pre-commit starts in a repository whose configuration gives these arguments."""
    assert (HOOK["language"], HOOK["pass_filenames"]) == ("system", False)
    ssmspec, conform, *words = shlex.split(HOOK["entry"])
    assert (ssmspec, conform) == ("ssmspec", "conform")
    return done(*words, *args, cwd=folder)


def test_the_page_names_the_hook() -> None:
    assert configured()["id"] == HOOK["id"]


@pytest.mark.parametrize(("new", "code"), [("np.exp(dt * A)", 0), ("np.exp(-dt * A)", 1)], ids=["right", "wrong"])
def test_a_right_adapter_passes_and_a_wrong_one_fails(tmp_path: Path, new: str, code: int) -> None:
    source = (ROOT / "conformance" / "starters" / "ssd_operations.py").read_text(encoding="utf-8")
    assert source.count("np.exp(dt * A)") == 1
    (tmp_path / "my_kernels.py").write_text(source.replace("np.exp(dt * A)", new))
    ran = commit(tmp_path, *configured()["args"])
    assert ran.returncode == code, ran.stdout + ran.stderr


def test_the_adapter_may_be_named_in_pyproject_and_without_one_nothing_passes(tmp_path: Path) -> None:
    without = commit(tmp_path)
    assert without.returncode == 2
    assert "--adapter" in without.stdout + without.stderr
    (tmp_path / "pyproject.toml").write_text('[tool.ssmspec]\nadapter = "my_kernels:adapter"\n')
    named = commit(tmp_path)
    assert (named.returncode, "my_kernels" in named.stdout + named.stderr) == (2, True), "it does not load"
