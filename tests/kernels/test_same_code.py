"""Machine code that is the same is found so, and a planted change of code, grid or arguments is not.

Interpreted kernels cannot be compiled in the same process, so that all compilation happens in others.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.language import constexpr

from perf_gates.digest.launches import Tensors, described, plain, unnamed
from perf_gates.gpu.variants import Variant, variant
from perf_gates.static import same_code
from perf_gates.static.capture import Launch, leaves
from perf_gates.static.kernel_modules import homes, kernel_module
from perf_gates.static.same_code import Code, Intermediate
from tests.kernels.moving import moved

pytestmark = pytest.mark.interpreter

NAME = "commit_halves T=6 any"
CODE = Code("c0", "grid (1,)", {"LDG.E": 2, "EXIT": 1})


def changed(folder: Path, *edits: tuple[str, str]) -> dict[str, Code]:
    """The launch of a small kernel, edited."""
    kernels = folder / str(len(list(folder.iterdir()))) / "kernels"
    shutil.copytree(same_code.KERNELS / "ssmspec_kernels", kernels / "ssmspec_kernels")
    (file,) = (f for f in kernels.rglob("*.py") if "def commit_halves(" in f.read_text())
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
    known = Tensors()

    def said(*args: object, block: int = 8) -> str:
        return described(Launch(kernel, args, {"BLOCK": block}, (1,)), known.told)

    plain = said(x, y, 4)
    assert said(x, y, 4, block=16) == plain
    assert plain not in (said(y, x, 4), said(x, y, 5), said(x, y[1:], 4), said(x, y.half(), 4))


def test_a_tuple_is_given_what_it_holds_and_its_constants_are_not() -> None:
    x = torch.zeros(2)
    strided: Any = namedtuple("strided", "ptr stride")

    def launched(*args: object, **options: int) -> Launch:
        params = [SimpleNamespace(name=f"arg{i}", is_constexpr=False) for i in range(len(args))]
        kernel: Any = SimpleNamespace(params=params, arg_names=[p.name for p in params], __name__="kernel")
        return Launch(kernel, args, options, (1,))

    flat, grouped = launched(x, 2, 3, 4), launched(strided(x, constexpr(8)), (2, (3,)), 4)
    assert described(flat, Tensors().told) == described(grouped, Tensors().told)
    assert [*leaves("at", (2, (3,)))] == [("at.0", 2), ("at.1.0", 3)]
    of = variant(launched(strided(x, constexpr(8)), (None, (constexpr(3), None)), None, num_warps=4))
    assert of == Variant("kernel", (("arg1.1.0", 3), ("num_warps", 4)), ("arg1.0", "arg1.1.1", "arg2"))


def test_a_run_that_was_stopped_goes_on_and_other_kernels_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def of_tree(kernels: Path, names: list[str], *how: Any) -> dict[str, Code]:
        asked.append(names)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return {f"{name} 0": CODE for name in names}

    monkeypatch.setattr(same_code, "of_tree", of_tree)
    names = [f"k{i}" for i in range(same_code.AT_ONCE + 1)]
    with pytest.raises(KeyboardInterrupt):
        same_code.in_parts(tmp_path / "kept", same_code.KERNELS, names, 90, 1)
    found = same_code.in_parts(tmp_path / "kept", same_code.KERNELS, names, 90, 1)
    assert found == {f"{name} 0": CODE for name in names}
    assert asked == [names[:-1], names[-1:], names[-1:]]
    kernels = tmp_path / "kernels"
    shutil.copytree(same_code.KERNELS / "ssmspec_kernels", kernels / "ssmspec_kernels")
    (launcher,) = kernels.rglob("commit_tokens.py")
    launcher.write_text(launcher.read_text() + "# the same code\n")
    same_code.in_parts(tmp_path / "kept", kernels, names, 90, 1)
    assert len(asked) == 3
    launcher.write_text(launcher.read_text().replace("num_warps=1", "num_warps=2"))
    same_code.in_parts(tmp_path / "kept", kernels, names, 90, 1)
    assert len(asked) == 5


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
    assert plain(printed, "f") == "kernel:\nEXIT ;"
    with pytest.raises(RuntimeError, match="no code of f"):
        plain(f"{head} .nv.info {head}\n", "f")


def test_a_tree_that_does_not_compile_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"NameError: name 'nothing' is not defined"):
        changed(tmp_path, ("@triton.jit\n", "@nothing\n"))


def test_a_package_from_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"ssmspec_kernels was imported from .*, not from "):
        same_code.of_tree(tmp_path, [NAME], 90, 1)


@pytest.mark.nightly
def test_modules_in_other_folders_and_under_other_names_are_compared_and_so_is_what_is_timed(tmp_path: Path) -> None:
    package = moved(tmp_path / "kernels")
    names, renamed = [NAME, "timed linear#0#0"], {name: f"of_{name}" for name in homes()}
    before = same_code.of_tree(same_code.KERNELS, names, 90, 1)
    assert [*before] == [f"{NAME} 0", "timed linear#0#0"]
    assert list(same_code.differences(before, same_code.of_tree(package.parent, names, 90, 1, renamed))) == []
    with pytest.raises(RuntimeError, match="no module, no function and no launcher with an argument 'of_none'"):
        same_code.of_tree(package.parent, names, 90, 1, {"none": "of_none"})


def test_a_launcher_under_another_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = kernel_module("double_buffer")
    monkeypatch.setattr(halves, "commit_both", None, raising=False)
    same_code.rename({"commit_both": "commit_halves"})
    assert halves.commit_both is halves.commit_halves


def test_an_argument_under_another_name_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = kernel_module("norm")
    monkeypatch.setattr(norm, "norm", lambda x, *, eps=1.0: (x, eps))
    same_code.rename({"epsilon": "eps"})
    assert norm.norm(2, epsilon=3.0) == norm.norm(2, eps=3.0) == (2, 3.0)


@pytest.mark.nightly
def test_every_variant_that_is_timed_is_compared_once() -> None:
    """In a process without the interpreter: the launches of a case are counted there."""
    code = "from perf_gates.static import same_code as s; import json; print(json.dumps(s.timed_names()))"
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=same_code.ROOT)
    assert done.returncode == 0, done.stderr
    names = json.loads(done.stdout.splitlines()[-1])
    parts = {name.removeprefix("timed ").split("#")[0] for name in names}
    assert {"steps", "buffered", "buffered_delta", "linear", "prefill"} <= parts
    assert sum(len(name.rsplit("#", 1)[1].split("+")) for name in names) > 50


VARIANTS = """
from typing import NamedTuple
import torch
import triton
import triton.language as tl

class Place(NamedTuple):
    n: int
    stride: int

@triton.jit
def plain(x, y, n, stride, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i * stride, mask=i < n, other=0.0)
    tl.store(y + i, value * 2.0 + 1.0, mask=i < n)

@triton.jit
def loaded(x, i, at):
    return tl.load(x + i * at.stride, mask=i < at.n, other=0.0)

@triton.jit
def split(x, y, at, N: tl.constexpr):
    j = tl.arange(0, N)
    value = loaded(x, j, at)
    tl.store(y + j, value * 2.0 + 1.0, mask=j < at.n)

@triton.jit
def arithmetic(x, y, n, stride, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i * stride, mask=i < n, other=0.0)
    tl.store(y + i, value * 2.0 - 1.0, mask=i < n)

@triton.jit(do_not_specialize_on_alignment=["stride"])
def unhinted(x, y, n, stride, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i * stride, mask=i < n, other=0.0)
    tl.store(y + i, value * 2.0 + 1.0, mask=i < n)
"""
COMPARED = """
import json, sys
from dataclasses import asdict
import torch
from perf_gates.digest.launches import Tensors
from perf_gates.static import same_code as s
from perf_gates.static.capture import Launch
sys.path.insert(0, sys.argv[1])
import variants as v
x, y = torch.empty(512, device="meta"), torch.empty(32, device="meta")
flat = x, y, 20, 16
made = {name: Launch(getattr(v, name), flat, {"N": 32}, (1,)) for name in ("plain", "arithmetic", "unhinted")}
made["split"] = Launch(v.split, (x, y, v.Place(20, 16)), {"N": 32}, (1,))
made["warps"] = Launch(v.plain, flat, {"N": 32, "num_warps": 2}, (1,))
made["stages"] = Launch(v.plain, flat, {"N": 32, "num_stages": 2}, (1,))
made["fusion"] = Launch(v.plain, flat, {"N": 32, "enable_fp_fusion": False}, (1,))
made["odd"] = Launch(v.plain, (x, y, 20, 3), {"N": 32}, (1,))
made["grid"] = Launch(v.plain, flat, {"N": 32}, (2,))
forms = {name: asdict(s._intermediate(launch, 90, Tensors())) for name, launch in made.items()}
same = {name: s._code(made[name], 90, Tensors()).code for name in ("plain", "split")}
print(json.dumps([forms, same]))
"""


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Intermediate], dict[str, str]]:
    """A kernel as it is and changed: the launches before machine code is made, and what is made of two."""
    folder = tmp_path_factory.mktemp("variants")
    (folder / "variants.py").write_text(VARIANTS)
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_DISABLE_LINE_INFO": "1"}
    command = [sys.executable, "-c", COMPARED, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=same_code.ROOT)
    assert done.returncode == 0, done.stderr
    forms, codes = json.loads(done.stdout.splitlines()[-1])
    return {name: Intermediate(**form) for name, form in forms.items()}, codes


@pytest.mark.parametrize("name", ["arithmetic", "unhinted", "warps", "stages", "fusion", "odd", "grid"])
def test_another_product_hint_option_or_grid_is_another_launch_before_it_is_machine_code(name: str, variants: Any) -> None:
    forms, _ = variants
    assert same_code.unproven({"k 0": forms["plain"]}, {"k 0": forms[name]}) == {"k 0"}


def test_a_kernel_cut_into_functions_with_its_strides_in_a_tuple_is_the_same(variants: Any) -> None:
    """And so is the machine code; as its source changed it is among those that are compiled."""
    forms, codes = variants
    before, after = {"k 0": forms["plain"]}, {"k 0": forms["split"]}
    assert same_code.unproven(before, after) == set()
    assert same_code.sampled(before, after) == {"k 0"}
    assert same_code.sampled(before, before) == set()
    assert codes["plain"] == codes["split"]


def test_a_launch_on_one_side_is_not_proven_and_one_launch_of_each_changed_kernel_is_compiled() -> None:
    def form(kernel: str, source: str) -> Intermediate:
        return Intermediate("same", "grid (1,)", kernel, source)

    before = {"a 0": form("f", "0"), "a 1": form("f", "0"), "b 0": form("g", "0"), "c 0": form("h", "0")}
    after = {"a 0": form("f", "1"), "a 1": form("f", "1"), "b 0": form("g", "0"), "d 0": form("h", "0")}
    assert same_code.unproven(before, after) == {"c 0", "d 0"}
    assert same_code.sampled(before, after) == {"a 0"}


def test_a_launch_belongs_to_the_entry_or_the_timed_case_that_makes_it() -> None:
    names = ["norm T=1 any", "timed steps#1#0+12", "timed steps#1#2"]
    assert [same_code.entry_of(n, names) for n in ("norm T=1 any 0", "timed steps#1#12", "timed steps#1#2")] == names


def test_names_of_functions_and_nothing_else_are_numbered() -> None:
    text = 'tt.func public @kernel(%arg0: i32) { tt.call @sum.f32(%arg0) "@kernels @p mov" }\n tt.func private @sum.f32()'
    told = 'tt.func public @function_0(%arg0: i32) { tt.call @function_1(%arg0) "@kernels @p mov" }\n'
    assert unnamed(text) == told + " tt.func private @function_1()"


def test_constants_are_compared_where_they_are_used_and_not_in_their_order() -> None:
    one, two = "  %cst = arith.constant dense<1> : i32\n", "  %cst_0 = arith.constant dense<2> : i32\n"
    swapped = two.replace("cst_0", "cst") + one.replace("cst", "cst_0")
    used = unnamed(one + two + "  %1 = arith.addi %0, %cst : i32\n")
    assert used == "  %1 = arith.addi %0, <dense<1> : i32> : i32\n"
    assert unnamed(swapped + "  %1 = arith.addi %0, %cst_0 : i32\n") == used
    assert unnamed(swapped + "  %1 = arith.addi %0, %cst : i32\n") != used
