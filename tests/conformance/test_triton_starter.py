"""The starter of a Triton kernel passes in the interpreter; a wrong mask and a wrong group in it are found, and say so."""

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = files("conformance.starters").joinpath("ssd_triton.py").read_text()


def ssmspec(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")]), "COLUMNS": "300"}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "conformance", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)


def judged(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return ssmspec(folder, "run", "--adapter", "mine:adapter", "--device", "interpreter", "--tier", "smoke", *words)


def test_what_init_writes_passes_in_the_interpreter(tmp_path: Path) -> None:
    made = ssmspec(tmp_path, "init", "mine.py", "--level", "triton")
    assert made.returncode == 0, made.stderr
    assert "smoke --adapter mine:adapter --device interpreter" in made.stdout
    done = judged(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ran on: Triton interpreter" in done.stdout
    refused = ssmspec(tmp_path, "smoke", "--adapter", "mine:adapter")
    assert refused.returncode == 2
    assert "add --device interpreter, or --device cuda on a GPU" in refused.stderr


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("mask=in_p, other=0.0)", "mask=at_p < p + 1, other=0.0)", "bytes past the end of x, which has"),
        ("group = head // (h // g)", "group = head % g", "Head h reads group h mod g instead of h"),
    ],
    ids=["mask", "group"],
)  # fmt: skip
def test_a_planted_bug_is_found_and_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert SOURCE.count(old) == 1
    (tmp_path / "mine.py").write_text(SOURCE.replace(old, new))
    done = judged(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stdout


def test_a_starter_for_another_recurrence_is_refused(tmp_path: Path) -> None:
    done = ssmspec(tmp_path, "init", "mine.py", "--level", "triton", "--recurrence", "delta")
    assert done.returncode == 2
    assert "--recurrence is delta, but --level triton has a starter for ssd only" in done.stderr
    assert not (tmp_path / "mine.py").exists()
