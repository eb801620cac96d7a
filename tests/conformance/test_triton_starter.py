"""The starter of a Triton kernel passes in the interpreter; a wrong mask and a wrong group in it are found, and say so."""

import os
from importlib.resources import files
from pathlib import Path

import pytest

from tests.commands import PLACES, done, ends

JUDGED = ("run", "--adapter", "mine:adapter", "--device", "interpreter", "--tier", "smoke")
SOURCE = files("conformance.starters").joinpath("ssd_triton.py").read_text()


def test_what_init_writes_passes_in_the_interpreter(tmp_path: Path) -> None:
    ends(0, "init", tmp_path / "mine.py", "--level", "triton", said="check --adapter mine:adapter --device interpreter")
    done(*JUDGED, folder=tmp_path, cwd=tmp_path, code=0, said="ran on: Triton interpreter")
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    plain |= {"PYTHONPATH": os.pathsep.join([str(tmp_path), *PLACES])}
    done("check", *JUDGED[1:3], env=plain, code=2, said="add --device interpreter, or --device cuda on a GPU")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("mask=in_p, other=0.0)", "mask=at_p < p + 1, other=0.0)", "bytes past the end of x, which has"),
        ("group = head // (h // g)", "group = head % g", "as if head h read group h mod g"),
    ],
    ids=["mask", "group"],
)  # fmt: skip
def test_a_planted_bug_is_found_and_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert SOURCE.count(old) == 1
    (tmp_path / "mine.py").write_text(SOURCE.replace(old, new))
    done(*JUDGED, folder=tmp_path, cwd=tmp_path, code=1, said=said)
