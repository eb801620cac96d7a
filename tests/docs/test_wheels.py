"""Who tests a kernel installs no weights: they, and their training, are in the wheel of a distribution of their own."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN = ROOT / "ssmspec_fast" / "checkpoints"
LARGEST = 5_000_000
"""Bytes of the wheel without weights; they alone have 11 MB."""


def files_of(source: Path, into: Path) -> tuple[int, set[str]]:
    """The size of a wheel that pip makes, and the files in it."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(into), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = into.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return wheel.stat().st_size, {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.mark.timeout(600)
def test_the_two_wheels_hold_the_tracked_files_of_their_folders_and_share_none(tmp_path: Path) -> None:
    size, without = files_of(ROOT, tmp_path / "ssmspec")
    _, weights = files_of(OWN, tmp_path / "checkpoints")
    listed = subprocess.run(["git", "ls-files", "ssmspec_fast"], cwd=ROOT, check=True, capture_output=True, text=True)
    tracked = set(listed.stdout.splitlines())
    assert weights == {name for name in tracked if name.startswith(("ssmspec_fast/checkpoints/", "ssmspec_fast/training/"))}
    assert {name for name in without if name.startswith("ssmspec_fast/")} == tracked - weights
    assert size < LARGEST


def test_both_have_one_version() -> None:
    versions = [tomllib.loads((at / "pyproject.toml").read_text())["project"]["version"] for at in (ROOT, OWN)]
    assert versions[0] == versions[1]
