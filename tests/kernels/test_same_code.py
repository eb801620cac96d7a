"""Machine code that is the same is found so, and a planted change of code, grid or arguments is not.

Interpreted kernels cannot be compiled in the same process, so that all compilation happens in others.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perf_gates import same_code
from perf_gates.capture import Launch
from perf_gates.same_code import Code

pytestmark = pytest.mark.interpreter

NAME = "commit_halves T=6 any"
CODE = Code("c0", "grid (1,)", {"LDG.E": 2, "EXIT": 1})


def changed(folder: Path, *edits: tuple[str, str]) -> dict[str, Code]:
    """The launch of a small kernel, edited."""
    kernels = folder / str(len(list(folder.iterdir()))) / "kernels"
    shutil.copytree(same_code.KERNELS / "ssmspec_kernels", kernels / "ssmspec_kernels")
    file = kernels / "ssmspec_kernels" / "halves.py"
    text = file.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    return same_code.of_tree(kernels, [NAME], 90, 1)


def test_names_and_lines_do_not_count_and_code_and_grid_do(tmp_path: Path) -> None:
    before = changed(tmp_path)
    assert list(before) == [f"{NAME} 0"]
    assert before[f"{NAME} 0"].instructions["EXIT"] >= 1
    moved = ("took", "moving"), ("_commit_halves_kernel", "_halves_kernel"), ("@triton.jit\n", "\n\n@triton.jit\n")
    assert list(same_code.differences(before, changed(tmp_path, *moved))) == []
    other = ("1 - tl.load", "2 - tl.load"), ("triton.cdiv(rows, 128)", "triton.cdiv(rows, 128) + 1")
    grid, code = same_code.differences(before, changed(tmp_path, *other))
    assert grid.startswith(f"{NAME} 0: launched as\n    grid ")
    assert code.startswith(f"{NAME} 0: other code, ")


def test_what_a_kernel_is_given_counts_and_its_constants_do_not() -> None:
    x, y = torch.zeros(2), torch.zeros(2)
    params = [SimpleNamespace(name=name, is_constexpr=name.isupper()) for name in ("x", "y", "n", "BLOCK")]
    kernel: Any = SimpleNamespace(params=params, arg_names=[p.name for p in params])
    known = dict[int, int]()

    def said(*args: object, block: int = 8) -> str:
        return same_code.described(Launch(kernel, args, {"BLOCK": block}, (1,)), known)

    plain = said(x, y, 4)
    assert said(x, y, 4, block=16) == plain
    assert plain not in (said(y, x, 4), said(x, y, 5), said(x, y[1:], 4), said(x, y.half(), 4))


def test_a_launch_on_one_side_only_is_a_difference() -> None:
    assert list(same_code.differences({"k 0": CODE}, {"k 0": CODE})) == []
    assert list(same_code.differences({"k 0": CODE}, {})) == ["k 0: launched only before the change"]
    assert list(same_code.differences({}, {"k 0": CODE})) == ["k 0: launched only after the change"]


def test_other_code_is_said_in_instructions_that_moved() -> None:
    (line,) = same_code.differences({"k 0": CODE}, {"k 0": replace(CODE, code="c1", instructions={"LDG.E": 1, "EXIT": 1})})
    assert line == "k 0: other code, 3 -> 2 instructions; LDG.E 2 -> 1"
    (line,) = same_code.differences({"k 0": CODE}, {"k 0": replace(CODE, code="c1")})
    assert line.endswith("; as many of each")


def test_a_disassembly_without_code_is_refused() -> None:
    head = "//" + "-" * 21
    printed = f"\n.headerflags\n{head} .debug_line {head}\n 7\n{head} .text.f {head}\n f:\n\n    EXIT  ;\n"
    assert same_code.plain(printed, "f") == "kernel:\nEXIT ;"
    with pytest.raises(RuntimeError, match="no code of f"):
        same_code.plain(f"{head} .nv.info {head}\n", "f")


def test_a_tree_that_does_not_compile_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"NameError: name 'nothing' is not defined"):
        changed(tmp_path, ("@triton.jit\n", "@nothing\n"))


def test_a_package_from_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"ssmspec_kernels came from .*, not from "):
        same_code.of_tree(tmp_path, [NAME], 90, 1)
